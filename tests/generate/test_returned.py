"""Test that what a user's function left on a sample is read with the types that an event has, or its field is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from schemas.errors import PlugPointError
from serve_apps.rollouts.generate.returned import read_sample
from slime_events.plugins.sample import Sample, Status


def sample_of(**fields: Any) -> Sample:
    sample = Sample(tokens=[1, 2, 3], response_length=2, response="a")
    vars(sample).update(fields)
    return sample


class Words(str):
    """A text of a user's own type."""


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("response", Words("a\ud800"), "a\ufffd"),
        ("response_length", np.int64(2), 2),
        ("response_length", torch.tensor(2), 2),
        ("remove_sample", np.bool_(True), True),
        ("remove_sample", 0, False),
    ],
)
def test_other_types_are_read_as_what_they_stand_for(field: str, value: Any, read: Any) -> None:
    sample = sample_of(**{field: value})
    value_read = getattr(read_sample(sample), field)
    assert (value_read, type(value_read)) == (read, type(read))
    assert getattr(sample, field) is value, "the function's own sample stays"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", np.array([1, 2], np.uint16)),
        ("tokens", ()),
        ("tokens", torch.tensor([1, 2])),
        ("loss_mask", None),
        ("loss_mask", []),
        ("loss_mask", [True, False]),
        ("loss_mask", [1.0, 0.0]),
        ("rollout_log_probs", None),
        ("rollout_log_probs", []),
        ("rollout_log_probs", [-1, None]),
        ("rollout_log_probs", [None, None]),
        ("rollout_log_probs", np.array([-0.5])),
        ("status", Status.TRUNCATED),
        ("status", "truncated"),
    ],
)
def test_numbers_of_every_kind_are_taken(field: str, value: Any) -> None:
    assert getattr(read_sample(sample_of(**{field: value})), field) is value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response", None),
        ("response", b"a"),
        ("response_length", True),
        ("response_length", np.bool_(True)),
        ("response_length", 2.0),
        ("response_length", None),
        ("status", None),
        ("status", 3),
        ("tokens", None),
        ("tokens", 3),
        ("tokens", [[1], [2]]),
        ("tokens", [[1], [2, 3]]),
        ("tokens", [1.5]),
        ("tokens", [True]),
        ("tokens", ["a"]),
        ("tokens", [2**70]),
        ("loss_mask", 1),
        ("loss_mask", ["a"]),
        ("loss_mask", [None]),
        ("rollout_log_probs", 0.5),
        ("rollout_log_probs", ["a"]),
        ("rollout_log_probs", [True]),
        ("rollout_log_probs", [[0.5]]),
        ("rollout_log_probs", [[0.5], [0.5, 0.5]]),
        ("rollout_log_probs", [None, "a"]),
        ("spec_info", None),
        ("prefix_cache_info", {}),
    ],
)
def test_a_field_that_cannot_be_read_is_named(field: str, value: Any) -> None:
    with pytest.raises(PlugPointError, match=rf"^sample\.{field} is "):
        read_sample(sample_of(**{field: value}))
