"""Functions for every hook. Each does the deed that is named here."""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.arrays import EMPTY_TOKENS
from schemas.prompts import Source
from slime_events.core.config.settings import TrainSettings
from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.sample import Sample
from tests.hostile.deeds import DEEDS

DEED = "none"
NO_TOKENS = EMPTY_TOKENS
SOURCE = Source(path="file")
ELSEWHERE = {
    "custom_rm_path": "custom reward",
    "dynamic_sampling_filter_path": "dynamic sampling filter",
    "buffer_filter_path": "buffer filter",
    "data_source_path": "data source",
    "custom_generate_function_path": "test_generate.py",
    "rollout_sample_hook_path": "test_generate.py",
    "rollout_function_path": "test_rollout_function.py",
    "eval_function_path": "test_rollout_function.py",
}
"""Settings of hooks that the table has under another name."""


def paths_in_settings() -> set[str]:
    """The settings that name a user's function."""
    names_ = set()
    for component in msgspec.structs.fields(TrainSettings):
        if isinstance(component.type, type) and issubclass(component.type, msgspec.Struct):
            names = component.type.__struct_fields__
            names_ |= {name for name in names if name.endswith("_path") and ("function" in name or "custom" in name
                      or "hook" in name or "filter" in name or "data_source" in name)}  # fmt: skip
    return names_ - {"custom_config_path"}  # a file of values


def value() -> Any:
    """Return the value of a deed; a function that raises is caught by its caller, and has other tests."""
    return None if DEED.startswith("raise ") else DEEDS[DEED]()


def does(*arguments: Any, **named: Any) -> Any:
    return DEEDS[DEED]()


async def does_async(*arguments: Any, **named: Any) -> Any:
    return DEEDS[DEED]()


def does_in_step(first: Any, two: Any, *more: Any) -> Any:
    return DEEDS[DEED]()


def does_for_each(args: Any, samples: Any, **named: Any) -> Any:
    return [DEEDS[DEED]() for _ in samples]


def does_under_its_key(args: Any, sample: Any, **named: Any) -> Any:
    return {"score": DEEDS[DEED](), "more": DEEDS[DEED]()}


def leaves_metadata(args: Any, sample: Sample, **named: Any) -> Any:
    sample.metadata["left"] = DEEDS[DEED]()
    return {"score": 1.0}


def leaves_log_probs(args: Any, sample: Sample, **named: Any) -> Any:
    sample.teacher_log_probs = DEEDS[DEED]()
    return {"score": 1.0}


def gives_a_reason(args: Any, samples: Any, **named: Any) -> Any:
    return DynamicFilterOutput(keep=False, reason=DEEDS[DEED]())


class GivenSource:
    """A data source whose one sample has what the deed gives. gives: where."""

    gives = "all"

    def __init__(self, args: Any) -> None:
        self._left = 1

    def get_samples(self, count: int) -> Any:
        if not self._left:
            return []
        self._left -= 1
        if self.gives == "all":
            return DEEDS[DEED]()
        return [[Sample(**{"prompt": "a question", self.gives: value()})]]
