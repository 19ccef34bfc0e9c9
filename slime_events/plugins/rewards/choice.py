"""`choose`: which function grades a sample, and where it runs. No other code decides either.

A sample's own function goes before the run's, and a function of the user before a built-in.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from schemas.doc import doc
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.sample import Sample

IMMEDIATE = frozenset({"exact", "random"})
"""Built-in graders that return quickly for every input, and so need no process with a time limit: they read the text a
few times, and run no user code, regular expression or parser.
"""
REMOTE = "remote_rm"
"""A reward model behind HTTP (`remote.py`)."""
OUTSIDE = "outside"
"""No grader: a producer sends the reward to the run's inbox."""


class Place(StrEnum):
    """Place of grading."""

    INLINE = "inline"
    """In the calling process: the function needs no time limit."""
    POOL = "pool"
    """In a process of the run's pool, with a time limit."""
    JUDGE = "judge"
    """By the reward model at --rm-url."""
    OUTSIDE = "outside"
    """By a producer, who sends the reward to the run's inbox."""


class Choice(msgspec.Struct, frozen=True):
    """The function that grades a sample, and its place."""

    name: Annotated[str, doc("Path of a user's function, or name of a built-in; empty if none is named.")] = ""
    is_own: Annotated[bool, doc("Whether it is a user's function.")] = False
    place: Place = Place.POOL


def choose(settings: RewardSettings, sample: Sample) -> Choice:
    """Return the function and the place for one sample, or for a group that begins with it.

    The first that is set decides: `sample.custom_rm_path`, `custom_rm_path`, `metadata["rm_type"]`, `rm_type`.
    """
    if path := sample.custom_rm_path or settings.custom_rm_path:
        return Choice(path, is_own=True)
    name = grader_name(settings, sample)
    if name in IMMEDIATE:
        return Choice(name, place=Place.INLINE)
    if REMOTE in name:
        return Choice(name, place=Place.JUDGE)
    return Choice(name, place=Place.OUTSIDE if name == OUTSIDE else Place.POOL)


def grader_name(settings: RewardSettings, sample: Sample) -> str:
    """Return the name of a sample's built-in grader; empty if a user's function grades it, or none is named."""
    if sample.custom_rm_path or settings.custom_rm_path:
        return ""
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    return str(metadata.get("rm_type") or settings.rm_type or "").strip()


def reward_key(settings: RewardSettings, *, evaluation: bool = False) -> str | None:
    """Return --reward-key, or for an evaluation --eval-reward-key if it is set."""
    return (settings.eval_reward_key if evaluation else None) or settings.reward_key
