"""`run_filter`: a filter's verdict on one group, as data for the event that records it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from schemas.errors import PlugPointError
from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.filters.figures import Member, RewardFigures, figures_of, rewards_of
from slime_events.plugins.loader import digest_of, name_of

Filter = Callable[..., Any]
"""slime's signature: `(args, samples, **kwargs) -> DynamicFilterOutput | bool`."""


class FilterDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One group's verdict, what it was taken on and by which code.

    `filter` is `module:name`, `none` where no filter is set; `digest` is the sha256 of its source.
    """

    keep: bool
    reason: str | None
    keep_when_insufficient: bool
    figures: RewardFigures
    filter: str
    digest: str


def run_filter(function: Filter | None, shown: Any, samples: Sequence[Member]) -> FilterDecision:
    """Ask `function` about a group whose samples all have rewards; without one every group is kept. shown: what the
    filter sees as its `args`.

    Raises PlugPointError where the filter raises or returns what is neither a verdict nor a bool: the message names
    filter, group and cause. What becomes of the run is the caller's decision.
    """
    figures = figures_of(rewards_of(shown, samples))
    if function is None:
        return kept(figures)
    try:
        returned = function(shown, samples)
    except Exception as error:
        raise PlugPointError(f"{_where(function, samples)} raised {type(error).__name__}: {error}") from error
    output = returned if isinstance(returned, DynamicFilterOutput) else DynamicFilterOutput(keep=returned)
    return FilterDecision(
        keep=_as_bool(output.keep, function, samples),
        reason=None if output.reason is None else str(output.reason),
        keep_when_insufficient=bool(output.keep_when_insufficient),
        figures=figures,
        filter=name_of(function),
        digest=digest_of(function),
    )


def kept(figures: RewardFigures) -> FilterDecision:
    """What is decided on a group where no filter is set."""
    return FilterDecision(
        keep=True, reason=None, keep_when_insufficient=False, figures=figures, filter="none", digest=""
    )


def _as_bool(value: Any, function: Filter, samples: Sequence[Member]) -> bool:
    # numpy and torch booleans have item(); a tensor of several elements has too, and raises.
    item = getattr(value, "item", None)
    try:
        plain = item() if callable(item) else value
    except (ValueError, RuntimeError) as error:
        raise PlugPointError(f"{_where(function, samples)} gave more than one truth value: {error}") from error
    if isinstance(plain, bool | int):
        return bool(plain)
    raise PlugPointError(
        f"{_where(function, samples)} returned {type(plain).__name__} {plain!r}: "
        "it must return True, False or a DynamicFilterOutput"
    )


def _where(function: Filter, samples: Sequence[Member]) -> str:
    first = samples[0][0] if isinstance(samples[0], list) else samples[0]
    return f"the filter {name_of(function)} on group {first.group_index} ({len(samples)} samples)"
