"""Group normalisation, pass@k, conversion of samples."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import DataError, PlugPointError
from slime_events.algorithms.columns import convert_samples, fill_rollout_ids
from slime_events.algorithms.pass_rate import pass_rate
from slime_events.algorithms.repetition import has_repetition
from slime_events.algorithms.reward_norm import normalize_by_group, normalize_rewards
from slime_events.algorithms.rollout_stats import describe, zero_std
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


@given(st.lists(st.tuples(st.integers(0, 3), reward), min_size=1, max_size=20))
def test_by_group_is_the_same_in_any_order(pairs):
    settings = AlgorithmSettings()
    ids, rewards = [group for group, _ in pairs], [value for _, value in pairs]
    got = normalize_by_group(rewards, ids, settings)
    for group in set(ids):
        mine = [value for name, value in pairs if name == group]
        assert [value for name, value in zip(ids, got, strict=True) if name == group] == normalize_rewards(
            mine, [len(mine)], settings
        )


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


def test_figures():
    assert describe([1, 2, 6], "len") == {"len/mean": 3.0, "len/median": 2.0, "len/max": 6.0, "len/min": 1.0}
    assert describe([], "len") == {}
    assert zero_std([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [1.0]]) == {"zero_std/count_1.0": 2, "zero_std/count_0.0": 1}


def test_fan_out_siblings_share_their_rollouts_mask_sum():
    assert fill_rollout_ids([None, 0, None, 0]) == [1, 0, 2, 0]
    samples = [
        Sample(group_index=0, rollout_id=r, tokens=[0] * 4, response_length=3, loss_mask=m, reward=1.0)
        for r, m in ((5, [1, 1, 0]), (5, [1, 0, 0]), (6, [1, 1, 1]))
    ]
    assert convert_samples(samples, AlgorithmSettings())["rollout_mask_sums"] == [3, 3, 3]


def test_a_dict_reward_needs_its_key():
    sample = Sample(tokens=[1, 2], response_length=1, reward={"score": 2.0}, metadata={"raw_reward": 7})
    assert convert_samples([sample], AlgorithmSettings(), "score")["raw_reward"] == [7]
    with pytest.raises(DataError, match="reward_key"):
        convert_samples([sample], AlgorithmSettings())


def test_append_refuses_what_would_lose_alignment():
    sample = Sample(tokens=[1, 2], response_length=1)
    for call in ({"tokens": [3]}, {"tokens": [3], "log_probs": [-1.0, -2.0]}, {"tokens": [3], "log_probs": [-1.0]}):
        with pytest.raises(PlugPointError):
            sample.append_response_tokens(**call)
    assert sample.tokens == [1, 2]
    sample.append_response_tokens(tokens=[3], trainable=False)
    assert (sample.loss_mask, sample.rollout_log_probs, sample.response_length) == ([1, 0], [0.0, 0.0], 2)


def test_light_modules_do_not_import_torch():
    names = ["reward_norm", "packing", "balance", "pass_rate", "repetition", "rollout_stats", "columns"]
    imports = "; ".join(f"import slime_events.algorithms.{name}" for name in names)
    code = f"import sys; {imports}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
