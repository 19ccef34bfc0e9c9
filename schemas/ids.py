"""Ids of samples: `<group>-s<index>`, and `<group>-s<index>-<n>` for the further samples of one rollout.

Their grammar is written and parsed here alone.
"""

from __future__ import annotations

TRAIN, INBOX, LOADED = "train", "inbox", "loaded"
"""Data sets of prompts that a run names itself: its file, prompts from outside, those with recorded answers."""


def sample_id(group: str, index: int) -> str:
    """The sample that is asked for as the group's `index`-th."""
    return f"{group}-s{index}"


def sibling_id(sample: str, number: int) -> str:
    """What the rollout of `sample` gave beside it, counted from 1; 0 is the sample itself."""
    return f"{sample}-{number}" if number else sample


def group_of(sample: str) -> str:
    """The group that a sample belongs to."""
    return sample.rpartition("-s")[0]


def requested_sample(sample: str) -> str:
    """The sample whose rollout this one came of: itself, but for the further ones of a rollout that gave several."""
    return sample_id(group_of(sample), place_of(sample)[0])


def place_of(sample: str) -> tuple[int, int]:
    """(index, number) of a sample within its group: the order that a group's samples stand in."""
    index, _, number = sample.rpartition("-s")[2].partition("-")
    return int(index), int(number or 0)
