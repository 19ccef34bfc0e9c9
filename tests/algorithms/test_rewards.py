"""Group normalisation, pass@k, texts that repeat themselves."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import DataError, PlugPointError
from slime_events.algorithms.pass_rate import has_repetition, pass_rate
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.plugins.sample import Sample

reward = st.floats(-100, 100)
groups = st.lists(st.lists(reward, min_size=1, max_size=9), min_size=1, max_size=6)


@given(groups)
def test_a_group_sums_to_zero_and_is_left_alone_by_others(rewards):
    flat = [value for group in rewards for value in group]
    sizes = [len(group) for group in rewards]
    normalized = normalize_rewards(flat, sizes, AlgorithmSettings())
    start = 0
    for group in rewards:
        part = normalized[start : start + len(group)]
        assert math.isclose(math.fsum(part), 0, abs_tol=1e-6)
        assert part == normalize_rewards(group, [len(group)], AlgorithmSettings())
        start += len(group)


@given(reward, st.integers(1, 9))
def test_equal_rewards_give_exact_zeros(value, size):
    assert normalize_rewards([value] * size, [size], AlgorithmSettings()) == [0.0] * size


@pytest.mark.parametrize(
    ("estimator", "std", "expected"),
    [
        ("grpo", True, [-(0.5**0.5), 0.5**0.5]),
        ("grpo", False, [-2.0, 2.0]),
        ("reinforce_plus_plus_baseline", True, [-2.0, 2.0]),
        ("reinforce_plus_plus", True, [1.0, 5.0]),
    ],
)
def test_what_is_centred_and_what_is_scaled(estimator, std, expected):
    settings = AlgorithmSettings(advantage_estimator=estimator, grpo_std_normalization=std)
    assert normalize_rewards([1.0, 5.0], [2], settings) == pytest.approx(expected, abs=1e-5)


def test_reinforce_plus_plus_takes_rewards_as_they_are():
    settings = AlgorithmSettings(advantage_estimator="reinforce_plus_plus")
    assert normalize_rewards([1, 0], [2], settings) == [1.0, 0.0]


@pytest.mark.parametrize(("rewards", "sizes"), [([1.0, 2.0], [3]), ([1.0, math.nan], [2]), ([1.0], [1, 0])])
def test_unusable_rewards_are_named_errors(rewards, sizes):
    with pytest.raises(DataError):
        normalize_rewards(rewards, sizes, AlgorithmSettings())


def test_pass_rate_of_ragged_groups_leaves_out_what_is_too_small():
    rates = pass_rate([1, 0, 0, 0, 1], [4, 1])
    assert rates == {"pass@1": (0.25 + 1) / 2, "pass@2": 0.5, "pass@4": 1.0}
    assert pass_rate([1, 0], [1, 1]) == {}


def test_long_circles_are_noticed():
    assert has_repetition("ab" * 5001)
    assert not has_repetition("".join(str(i * i) for i in range(3000)))


def test_append_refuses_what_would_lose_alignment():
    sample = Sample(tokens=[1, 2], response_length=1)
    for call in ({"tokens": [3]}, {"tokens": [3], "log_probs": [-1.0, -2.0]}, {"tokens": [3], "log_probs": [-1.0]}):
        with pytest.raises(PlugPointError):
            sample.append_response_tokens(**call)
    assert sample.tokens == [1, 2]
    sample.append_response_tokens(tokens=[3], trainable=False)
    assert (sample.loss_mask, sample.rollout_log_probs, sample.response_length) == ([1, 0], [0.0, 0.0], 2)


def test_append_grows_the_lists_that_a_function_holds():
    sample = Sample(tokens=[1, 2], loss_mask=[], rollout_log_probs=[])
    held = (sample.tokens, sample.loss_mask, sample.rollout_log_probs, sample.weight_versions)
    new = [3, 4]
    sample.append_response_tokens(tokens=new, log_probs=[-0.5, -1.0], meta_info={"weight_version": 7})
    sample.append_response_tokens(tokens=(9,), trainable=False)
    assert held == ([1, 2, 3, 4, 9], [1, 1, 0], [-0.5, -1.0, 0.0], ["7"])
    assert all(mine is its for mine, its in zip(held, (sample.tokens, sample.loss_mask), strict=False))
    assert new == [3, 4]


def test_append_takes_what_is_no_list():
    sample = Sample(tokens=np.array([1, 2]), loss_mask=(), rollout_log_probs=())
    sample.append_response_tokens(tokens=np.array([3]), log_probs=np.array([-1.0]))
    assert (sample.tokens, sample.loss_mask, sample.rollout_log_probs) == ([1, 2, 3], [1], [-1.0])


def test_light_modules_do_not_import_torch():
    names = ["estimators", "reward_norm", "packing", "pass_rate", "train_arguments"]
    imports = "; ".join(f"import slime_events.algorithms.{name}" for name in names)
    code = f"import sys; {imports}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
