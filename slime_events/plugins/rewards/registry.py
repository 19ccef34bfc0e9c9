"""The built-in graders, by --rm-type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slime_events.plugins.rewards import dapo, deepscaler, exact, f1, gpqa, math, random_reward, reasoning_gym
from slime_events.plugins.sample import Sample

BuiltIn = Callable[[str, Sample], Any]
"""`(response, sample) -> value`: the response comes apart, since `boxed_` may have cut it."""

GRADERS: Mapping[str, BuiltIn] = {
    "dapo": dapo.reward,
    "deepscaler": deepscaler.reward,
    "exact": exact.reward,
    "f1": f1.reward,
    "gpqa": gpqa.reward,
    "math": math.reward,
    "random": random_reward.reward,
    "reasoning_gym": reasoning_gym.reward,
}

IMMEDIATE = frozenset({"exact", "random"})
"""Graders that are over at once whatever they are given, and so need no process of their own with a time limit: they go
over the text a few times, and call nothing of a user's, no regular expression and no parser."""

REWARD_KEYS: Mapping[str, str] = {"dapo": "score"}
"""Which entry of a grader's dict is the reward where no --reward-key is given."""

HEAVY_IMPORTS: Mapping[str, tuple[str, ...]] = {
    "deepscaler": ("sympy", "sympy.parsing.sympy_parser", "pylatexenc.latex2text"),
    "math": ("sympy", "sympy.parsing.sympy_parser", "pylatexenc.latex2text"),
    "reasoning_gym": ("reasoning_gym",),
}
"""What a worker imports before it takes its first sample, so that no sample's time limit pays for it."""
