"""`GroupFilter`: the run's dynamic sampling filter, and its verdict on one group as recorded data."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from schemas.errors import PlugPointError, shown_text
from schemas.text import raised_text, repr_text
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.state.group import GroupState
from slime_events.plugins.args_view import ArgsView, for_one_call
from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.loader import digest_of, load_function, name_of
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import group_samples
from slime_events.plugins.texts import Texts

Member = Sample | list[Sample]
"""One member of a group: a sample, or the fragments of one trajectory, which share its reward."""


class RewardFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the group's rewards, float64. `std` is unbiased (n - 1); None for a group of one."""

    count: int
    mean: float
    std: float | None
    min: float
    max: float


def rewards_of(shown: Any, samples: Sequence[Member]) -> list[Any]:
    """One reward per member, in order. shown: the filter's `args`."""
    return [(member[0] if isinstance(member, list) else member).get_reward_value(shown) for member in samples]


def group_std(rewards: Sequence[float]) -> float | None:
    """Unbiased standard deviation in float64; None for fewer than two."""
    if len(rewards) < 2:
        return None
    return float(np.std(np.asarray(rewards, dtype=np.float64), ddof=1))


def figures_of(rewards: Sequence[float]) -> RewardFigures:
    """Statistics of at least one reward."""
    values = np.asarray(rewards, dtype=np.float64)
    return RewardFigures(
        count=len(values),
        mean=float(values.mean()),
        std=group_std(rewards),
        min=float(values.min()),
        max=float(values.max()),
    )


Filter = Callable[..., Any]
"""slime's signature: `(args, samples, **kwargs) -> DynamicFilterOutput | bool`."""


class FilterDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one group, the statistics of its rewards, and the code that decided.

    `filter` is `module:name`, `none` where no filter is set; `digest` is the sha256 of its source.
    """

    keep: bool
    reason: str | None
    keep_when_insufficient: bool
    figures: RewardFigures
    filter: str
    digest: str


GroupFilter = Callable[[GroupState], FilterDecision]
"""The filter as the conductor calls it; raises PlugPointError where the user's function is broken."""


def run_filter(function: Filter | None, shown: Any, samples: Sequence[Member]) -> FilterDecision:
    """Call `function` on a group whose samples all have rewards; without a function every group is kept.

    shown: the filter's `args`. Raises PlugPointError where the filter raises or returns neither a verdict nor a bool:
    the message names filter, group and cause. The caller decides whether the run ends.
    """
    figures = figures_of(rewards_of(shown, samples))
    if function is None:
        return _kept(figures)
    try:
        returned = function(shown, samples)
    except BaseException as error:  # SystemExit too: it is of this group, and the conductor has others
        raise PlugPointError(f"{_where(function, samples)} raised {raised_text(error)}") from error
    try:
        return _decision(returned, figures, function, samples)
    except PlugPointError:
        raise
    except BaseException as error:
        raise PlugPointError(
            f"{_where(function, samples)} returned what cannot be read: {raised_text(error)}"
        ) from error


def _decision(returned: Any, figures: RewardFigures, function: Filter, samples: Sequence[Member]) -> FilterDecision:
    output = returned if isinstance(returned, DynamicFilterOutput) else DynamicFilterOutput(keep=returned)
    return FilterDecision(
        keep=_as_bool(output.keep, function, samples),
        reason=None if output.reason is None else shown_text(str.__str__(str(output.reason))),
        keep_when_insufficient=bool(output.keep_when_insufficient),
        figures=figures,
        filter=name_of(function),
        digest=digest_of(function),
    )


def make_group_filter(rollout: RolloutSettings, shown: ArgsView, texts: Texts | None = None) -> GroupFilter:
    """The filter of --dynamic-sampling-filter-path, or one that keeps every group. shown: the filter's `args`.
    texts: of the samples, where the groups come without.
    """
    path = rollout.dynamic_sampling_filter_path
    if not path:
        return keep
    function = load_function(path)

    def judge(group: GroupState) -> FilterDecision:
        return run_filter(function, for_one_call(shown), group_samples(texts.told(group) if texts else group))

    return judge


def keep(group: GroupState) -> FilterDecision:
    """Keep the group, with its statistics. No samples are built: the trainer waits for this."""
    return _kept(figures_of(group.rollout_rewards))


def _kept(figures: RewardFigures) -> FilterDecision:
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
        f"{_where(function, samples)} returned {type(plain).__name__} {repr_text(plain)}: "
        "it must return True, False or a DynamicFilterOutput"
    )


def _where(function: Filter, samples: Sequence[Member]) -> str:
    first = samples[0][0] if isinstance(samples[0], list) else samples[0]
    return f"the filter {name_of(function)} on group {first.group_index} ({len(samples)} samples)"


def should_drop(output: DynamicFilterOutput | FilterDecision, *, insufficient: bool) -> bool:
    """slime's rule: a rejected group goes, unless it may fill up and no more others are left than the step needs."""
    return not (output.keep or (output.keep_when_insufficient and insufficient))
