"""Test the data that a function makes of a step's samples: which columns a batch gets, and which it cannot have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schemas.arrays import unpack
from slime_events.core.training.batch_columns import entries_of
from slime_events.plugins.sample import Sample
from slime_events.plugins.train_data import FIXED, REFUSED, TrainData, read_train_data

SAMPLES = [
    Sample(index=4, tokens=[1, 2, 3], response_length=2, loss_mask=[1, 0], rollout_log_probs=[-0.5, float("nan")]),
    Sample(
        index=5, tokens=[1, 4], response_length=1, loss_mask=[1], rollout_log_probs=[-1.0],
        status=Sample.Status.TRUNCATED, remove_sample=True,
    ),
]  # fmt: skip
USUAL = {
    "tokens": [[1, 2, 3], [1, 4]],
    "response_lengths": [2, 1],
    "total_lengths": [3, 2],
    "rollout_log_probs": [[-0.5, float("nan")], [-1.0]],
    "loss_masks": [[1, 0], [0]],
    "truncated": [0, 1],
    "sample_indices": [4, 5],
}
RAW, REWARDS = (1.0, 0.0), (0.5, -0.5)


def read(returned: object) -> TrainData:
    return read_train_data(returned, SAMPLES, RAW, REWARDS)


def columns(**data: Any) -> dict[str, list[Any]]:
    read_columns = read(data).columns
    return {
        column.name: [np.asarray(entry).tolist() for entry in entries_of(column, unpack)] for column in read_columns
    }


def test_what_is_as_the_samples_have_it_is_not_recorded() -> None:
    assert read(USUAL) == TrainData(RAW, REWARDS, ())
    arrays = {name: [np.array(entry) for entry in entries] for name, entries in USUAL.items()}
    assert read(arrays) == TrainData(RAW, REWARDS, ())


@pytest.mark.parametrize("name", FIXED)
def test_what_the_rollouts_say_stays_as_it_is(name: str) -> None:
    entries = list(reversed(USUAL[name]))
    with pytest.raises(ValueError, match=name):
        read({name: entries})


@pytest.mark.parametrize(
    ("name", "entries"),
    [("loss_masks", [[0, 1], [1]]), ("truncated", [1, 1]), ("sample_indices", [4, 6]), ("kinds", ["a", {"b": 1}])],
)
def test_what_differs_is_a_column(name: str, entries: list[Any]) -> None:
    assert columns(**{name: entries}) == {name: entries}
    assert columns(**{name: tuple(entries)}, **USUAL if name == "kinds" else {}) == {name: entries}


def test_arrays_of_every_kind_are_columns() -> None:
    assert columns(one=np.array([[1, 2], [3, 4]])) == {"one": [[1, 2], [3, 4]]}
    assert columns(one=[np.array([1, 2]), np.array([3])]) == {"one": [[1, 2], [3]]}
    assert columns(one=[[np.int64(1)], [np.int64(2), np.int64(3)]]) == {"one": [[1], [2, 3]]}


def test_rewards_are_the_function_s_where_it_gives_some() -> None:
    assert read({"rewards": [1, 2]}) == TrainData(RAW, (1.0, 2.0), ())
    assert read({"raw_reward": np.array([3.0, 4.0])}) == TrainData((3.0, 4.0), REWARDS, ())


@pytest.mark.parametrize("nothing", [None, [None, None], (None, None)])
def test_a_key_that_says_nothing_is_as_if_it_were_not_there(nothing: Any) -> None:
    data = dict.fromkeys((*REFUSED, *FIXED, "rewards", "mine"), nothing)
    assert read(data) == TrainData(RAW, REWARDS, ())


@pytest.mark.parametrize(
    "returned",
    [
        None,
        {},
        [1, 2],
        {"mine": []},
        {"mine": [1]},
        {"mine": [1, 2, 3]},
        {"mine": 3},
        {"mine": {"a": 1, "b": 2}},
        {"mine": [object(), 1]},
        {"loss_masks": [[1, 2], [1]]},
        {"loss_masks": [[1], [1]]},
        {"loss_masks": [1, [1]]},
        {"loss_masks": [{0: 1, 1: 1}, [1]]},
        {"rewards": ["a", 1]},
        {"rewards": [float("nan"), 1]},
        {"raw_reward": [float("inf"), 1]},
        *({name: [1, 2]} for name in REFUSED),
    ],
)
def test_what_a_batch_cannot_have_is_refused(returned: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the caller names function and flag
        read(returned)
