"""`run_cycle`: all events of the conductor at one position of the log, drawn prompts and new evaluations included.

`decide` needs the state alone; this also needs a `Feed`, which is as pure: the same cursors always give the same rows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from msgspec import UNSET
from msgspec.structs import replace

from schemas.errors import DataError
from schemas.event import Event
from schemas.prompts import PromptRejected, PromptSubmitted
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.core.config.settings import TrainSettings
from slime_events.core.state.run import RunState
from slime_events.loop.commands.order import CommandOrder
from slime_events.loop.conductor.accept import GroupFilter
from slime_events.loop.conductor.decide import decide, evals_due, prompts_to_draw, with_requests
from slime_events.loop.conductor.draw import requests_for, requests_missing
from slime_events.loop.conductor.outsiders import Outsiders
from slime_events.loop.conductor.plan import Plan, make_plan
from slime_events.loop.conductor.seal import Normalise
from slime_events.loop.prompts.prompt import Prompted
from slime_events.loop.prompts.refusals import ReasonCounts
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.decide import make_group_filter
from slime_events.plugins.post_process import PostProcess
from slime_events.plugins.texts import Texts
from storage.log import Recorded


class Policy(NamedTuple):
    """What the conductor decides by beside the state: its settings, and pure functions. texts: what the filter and the
    post-processing see of the samples beside the state; None where neither is set. outsiders: who may be waited for.
    commands: of a client that drives the run; None in any other.
    """

    plan: Plan
    group_filter: GroupFilter
    normalise: Normalise
    texts: Texts | None = None
    post_process: PostProcess | None = None
    outsiders: Outsiders = Outsiders()
    commands: CommandOrder | None = None

    @classmethod
    def of(cls, settings: TrainSettings, texts: Texts | None = None) -> Policy:
        """The policy of these settings. texts: new ones by default. Raises PlugPointError, ValueError."""
        rollout, processes = settings.rollout, settings.reward.custom_reward_post_process_path is not None
        if rollout.rollout_function_path is not None:  # it has chosen its groups
            rollout = replace(rollout, dynamic_sampling_filter_path=None)
        looks = rollout.dynamic_sampling_filter_path is not None or processes
        texts = (texts or Texts(until_trained=processes)) if looks else None
        args = ArgsView.of_run(settings)
        return cls(
            make_plan(settings.rollout, settings.evaluation, settings.trainer, settings.data),
            make_group_filter(rollout, args, texts),
            functools.partial(normalize_rewards, settings=settings.algorithm),
            texts,
            PostProcess.of(settings.reward, args, texts),
            Outsiders.of(settings),
            CommandOrder() if settings.run.tinker else None,
        )


class Feed(Protocol):
    """Where prompts come from."""

    def observe(self, recorded: Recorded) -> None:
        """Fold every event in, in order, before anything is taken after it: draws may depend on the log."""

    def malformed(self) -> list[PromptRejected]:
        """The lines of the prompt file that are no JSON objects."""

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """The next `count` usable prompts after the cursors, with the unusable ones between them."""

    def evaluation(self, name: str, version: int) -> list[Prompted]:
        """All prompts of one evaluation set, for one weight version."""


def run_cycle(
    state: RunState,
    plan: Plan,
    group_filter: GroupFilter,
    normalise: Normalise,
    feed: Feed,
    post_process: PostProcess | None = None,
) -> list[Event]:
    """The decisions, then the drawn prompts with their requests, then the evaluations that are due."""
    events = decide(state, plan, group_filter, normalise, post_process)
    count = prompts_to_draw(state, plan)
    if count:
        events += with_requests(draw(state, count, feed), state, plan)
    for name, version in evals_due(state, plan):
        events += evaluation(name, version, plan, feed)
    return events


def draw(state: RunState, count: int, feed: Feed) -> list[Prompted]:
    """The next prompts; a branch skips those that its parent had finished."""
    passed = {} if state.branched is UNSET else state.branched.passed
    if not passed:
        return feed.take(state.cursors, count)
    cursors, drawn = dict(state.cursors), list[Prompted]()
    while count > 0 and (rows := feed.take(cursors, count)):
        cursors |= {row.source.path: row.source.offset + 1 for row in rows}
        kept = [row for row in rows if row.source.offset not in passed.get(row.source.path, ())]
        count -= sum(isinstance(row, PromptSubmitted) for row in kept)
        drawn += kept
    return drawn


def recovery_events(state: RunState, plan: Plan, feed: Feed) -> list[Event]:
    """Events that an earlier conductor may not have appended before it was lost. Those it did append are identical."""
    events: list[Event] = [*feed.malformed(), *requests_missing(state, plan)]
    for begun in state.evals.values():
        events += evaluation(begun.dataset, begun.version, plan, feed)
    return events


def evaluation(name: str, version: int, plan: Plan, feed: Feed) -> list[Event]:
    """The prompts of an evaluation, then their requests. Raises DataError where none is usable."""
    events: list[Event] = list(feed.evaluation(name, version))
    prompts = [event for event in events if isinstance(event, PromptSubmitted)]
    if not prompts:
        reasons = ReasonCounts(one.reason.partition(": ")[2] for one in events if isinstance(one, PromptRejected))
        raise DataError(f"evaluation set {name!r} has no usable prompt: {len(events)} lines were refused: {reasons}")
    for prompt in prompts:
        events += requests_for(prompt.group, prompt.tokens, plan, evaluation=name, version=version)
    return events
