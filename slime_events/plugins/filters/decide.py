"""`GroupFilter`: the run's dynamic sampling filter, and its verdict on one group as recorded data."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from schemas.doc import doc
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
"""A member of a group: a sample, or the parts of one trajectory, which share its reward."""


class RewardFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a group's rewards, float64."""

    count: Annotated[int, doc("Number of rewards.")]
    mean: float
    std: Annotated[float | None, doc("Unbiased (n - 1); None for a group of one.")]
    min: float
    max: float


def rewards_of(shown: object, samples: Sequence[Member]) -> list[Any]:
    """Return one reward per member, in order. `shown` is the filter's `args`."""
    return [(member[0] if isinstance(member, list) else member).get_reward_value(shown) for member in samples]


def group_std(rewards: Sequence[float]) -> float | None:
    """Return the unbiased standard deviation in float64; None for fewer than two rewards."""
    if len(rewards) < 2:
        return None
    return float(np.std(np.asarray(rewards, dtype=np.float64), ddof=1))


def figures_of(rewards: Sequence[float]) -> RewardFigures:
    """Return the statistics of at least one reward."""
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
    """Verdict on one group, the statistics of its rewards, and the filter that decided."""

    keep: Annotated[bool, doc("Whether a step takes the group.")]
    reason: Annotated[str | None, doc("Reason for dropping the group.")]
    keep_when_insufficient: Annotated[bool, doc("Take the group anyway if a step needs another round of sampling.")]
    figures: RewardFigures
    filter: Annotated[str, doc("`module:name`, or `none` without a filter.")]
    digest: Annotated[str, doc("sha256 (hex) of the filter's source.")]


GroupFilter = Callable[[GroupState], FilterDecision]
"""The filter as the conductor calls it. Raises PlugPointError if the user's function fails."""


def run_filter(function: Filter | None, shown: object, samples: Sequence[Member]) -> FilterDecision:
    """Call `function` on a group whose samples all have rewards. Without a function every group is kept.

    `shown` is the filter's `args`. Raises PlugPointError if the filter raises or returns neither a verdict nor a bool:
    the message names filter, group and cause. The caller decides whether the run ends.
    """
    figures = figures_of(rewards_of(shown, samples))
    if function is None:
        return _kept(figures)
    try:
        returned = function(shown, samples)
    except BaseException as error:  # SystemExit too: other groups continue
        raise PlugPointError(f"{_where(function, samples)} raised {raised_text(error)}") from error
    try:
        return _decision(returned, figures, function, samples)
    except PlugPointError:
        raise
    except BaseException as error:  # a user's object may raise anything when it is read
        raise PlugPointError(
            f"{_where(function, samples)} returned an unreadable object: {raised_text(error)}"
        ) from error


def _decision(returned: object, figures: RewardFigures, function: Filter, samples: Sequence[Member]) -> FilterDecision:
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
    """Return the filter of --dynamic-sampling-filter-path, or one that keeps every group.

    `shown` is the filter's `args`. `texts` holds the texts of the samples, if the groups come without.
    """
    path = rollout.dynamic_sampling_filter_path
    if not path:
        return keep
    function = load_function(path)

    def judge(group: GroupState) -> FilterDecision:
        return run_filter(function, for_one_call(shown), group_samples(texts.with_texts(group) if texts else group))

    return judge


def keep(group: GroupState) -> FilterDecision:
    """Keep the group, with its statistics. Builds no samples: the trainer waits for this."""
    return _kept(figures_of(group.rollout_rewards))


def _kept(figures: RewardFigures) -> FilterDecision:
    return FilterDecision(
        keep=True, reason=None, keep_when_insufficient=False, figures=figures, filter="none", digest=""
    )


def _as_bool(value: object, function: Filter, samples: Sequence[Member]) -> bool:
    # numpy and torch booleans have item(). So has a tensor of several elements, whose item() raises.
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
    """Apply slime's rule: drop a rejected group, unless it may fill a step that would have too few."""
    return not (output.keep or (output.keep_when_insufficient and insufficient))
