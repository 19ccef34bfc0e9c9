"""Dynamic sampling filters and the decision that is recorded."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import PlugPointError
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.filters.decide import figures_of, run_filter
from slime_events.plugins.filters.dynamic_sampling import (
    check_reward_nonzero_std,
    check_reward_nonzero_std_with_fallback,
)
from slime_events.plugins.sample import Sample

ARGS = ArgsView({"reward_key": "score"})


def group(*rewards: Any) -> list[Sample]:
    return [Sample(group_index=4, index=index, reward=reward) for index, reward in enumerate(rewards)]


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=16))
def test_nonzero_std_is_torchs(rewards: list[float]) -> None:
    std = torch.tensor(rewards, dtype=torch.float64).std().item() if len(rewards) > 1 else math.nan
    if abs(std - 1e-6) < 1e-9:
        return
    assert check_reward_nonzero_std(ARGS, group(*rewards)).keep is (std > 1e-6)


def test_rewards_by_key_and_fragments_of_one_trajectory() -> None:
    fragments: list[Any] = [group({"score": 1.0}, {"score": 1.0}), *group({"score": 0.0})]
    decision = run_filter(check_reward_nonzero_std, ARGS, fragments)
    assert decision.keep
    assert decision.figures.count == 2
    assert decision.figures.mean == 0.5


def test_a_decision_says_what_it_was_taken_on() -> None:
    decision = run_filter(check_reward_nonzero_std_with_fallback, ARGS, group(1.0, 1.0))
    assert (decision.keep, decision.reason, decision.keep_when_insufficient) == (False, "zero_std_1.0", True)
    assert decision.filter == "slime_events.plugins.filters.dynamic_sampling:check_reward_nonzero_std_with_fallback"
    assert len(decision.digest) == 64
    assert (decision.figures.mean, decision.figures.std, decision.figures.min, decision.figures.max) == (1, 0, 1, 1)


def test_without_a_filter_every_group_is_kept() -> None:
    decision = run_filter(None, ARGS, group(1.0))
    assert (decision.keep, decision.filter, decision.figures.std) == (True, "none", None)
    assert figures_of([1.0, 2.0]).std == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize(
    ("returned", "keep"),
    [
        (True, True),
        (False, False),
        (np.bool_(True), True),
        (torch.tensor(False), False),
        (torch.tensor(2.0) > 1, True),
        (1, True),
        (DynamicFilterOutput(keep=torch.tensor(True)), True),
    ],
)
def test_truth_values_of_all_kinds(returned: Any, keep: bool) -> None:
    assert run_filter(lambda args, samples: returned, ARGS, group(1.0, 0.0)).keep is keep


@pytest.mark.parametrize("returned", [None, "yes", torch.ones(2) > 0, 0.5])
def test_what_is_no_verdict_is_an_error(returned: Any) -> None:
    with pytest.raises(PlugPointError, match="on group 4"):
        run_filter(lambda args, samples: returned, ARGS, group(1.0, 0.0))


def test_a_filter_that_raises_is_named_with_group_and_cause() -> None:
    def broken(args: Any, samples: list[Sample]) -> bool:
        return bool(samples[9].reward)

    with pytest.raises(PlugPointError, match=r"broken on group 4 \(2 samples\) raised IndexError") as caught:
        run_filter(broken, ARGS, group(1.0, 0.0))
    assert isinstance(caught.value.__cause__, IndexError)
