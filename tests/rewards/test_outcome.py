"""Test what a grader may return, and the outcome of each value."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rewards import RewardFailureKind as Kind
from slime_events.plugins.rewards.outcome import Graded, RewardFailure, outcome_event, plain, value_of


@pytest.mark.parametrize(
    ("returned", "value"),
    [(1, 1.0), (True, 1.0), (0.5, 0.5), (np.float32(0.5), 0.5), (torch.tensor([2.0]), 2.0), (np.bool_(False), 0.0)],
)
def test_numbers(returned: Any, value: float) -> None:
    outcome = value_of(returned, None)
    assert isinstance(outcome, Graded)
    assert outcome.value == value


@pytest.mark.parametrize(
    ("returned", "key", "kind"),
    [
        (None, None, Kind.NONE),
        (math.nan, None, Kind.NOT_A_NUMBER),
        (-math.inf, None, Kind.NOT_A_NUMBER),
        (10**400, None, Kind.NOT_A_NUMBER),
        (1e308, None, Kind.NOT_A_NUMBER),
        (-1.1e15, None, Kind.NOT_A_NUMBER),
        ("1.0", None, Kind.WRONG_TYPE),
        ([1.0], None, Kind.WRONG_TYPE),
        (np.ones(2), None, Kind.WRONG_TYPE),
        (torch.ones(2), None, Kind.WRONG_TYPE),
        ({"score": 1.0}, None, Kind.NO_KEY),
        ({"score": 1.0}, "acc", Kind.NO_KEY),
        ({"score": None}, "score", Kind.NONE),
        ({}, "score", Kind.NO_KEY),
    ],
)
def test_what_is_no_reward_is_named(returned: Any, key: str | None, kind: Kind) -> None:
    outcome = value_of(returned, key)
    assert isinstance(outcome, RewardFailure)
    assert outcome.kind is kind
    assert outcome.message


def test_a_dict_is_kept_as_detail() -> None:
    outcome = value_of({"score": np.float64(0.5), "parts": (1, {2})}, "score")
    assert outcome == Graded(value=0.5, detail={"score": 0.5, "parts": [1, [2]]})


def test_plain_holds_whatever_a_user_returns() -> None:
    assert plain({1: 2**70, "x": math.inf, "a": np.arange(2)}) == {"1": repr(2**70), "x": "inf", "a": [0, 1]}
    loop: list[Any] = []
    loop.append(loop)
    assert plain(loop)


def test_all_of_an_outcome_is_said() -> None:
    by = {"grader": "g", "grader_digest": "d", "seconds": 0.5}
    about = {"sample": "s", "group": "p", **by}
    graded = Graded(value=2.0, detail={"acc": True}, **by)  # type: ignore[arg-type]
    assert outcome_event("s", "p", graded) == RewardAssigned(value=2.0, detail={"acc": True}, **about)  # type: ignore[arg-type]
    failure = RewardFailure(kind=Kind.TIMEOUT, message="late", **by)  # type: ignore[arg-type]
    assert outcome_event("s", "p", failure) == RewardFailed(kind=Kind.TIMEOUT, message="late", **about)  # type: ignore[arg-type]
