"""`run_cycle`: all events of the conductor at a position of the log, including drawn prompts and new evaluations.

`decide` needs only the state. This module also needs a `Feed`, which is as pure: equal cursors give equal rows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, NamedTuple, Protocol

from msgspec import UNSET
from msgspec.structs import replace

from schemas.doc import doc
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
    """Settings and pure functions that the conductor decides by, besides the state."""

    plan: Plan
    group_filter: GroupFilter
    normalise: Normalise
    texts: Annotated[
        Texts | None, doc("texts of samples for the filter and the post-processing; None: neither is set")
    ] = None
    post_process: PostProcess | None = None
    outsiders: Annotated[Outsiders, doc("which external parties the run may wait for")] = Outsiders()
    commands: Annotated[CommandOrder | None, doc("commands of a client that drives the run; None: no client does")] = (
        None
    )

    @classmethod
    def of(cls, settings: TrainSettings, texts: Texts | None = None) -> Policy:
        """Return the policy of these settings. texts: default: new ones. Raises PlugPointError, ValueError."""
        rollout, processes = settings.rollout, settings.reward.custom_reward_post_process_path is not None
        if rollout.rollout_function_path is not None:  # the function selects its groups
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
    """A source of prompts."""

    def observe(self, recorded: Recorded) -> None:
        """Fold every event in, in order, before prompts are taken after it: draws may depend on the log."""

    def malformed(self) -> list[PromptRejected]:
        """Return rejections of the prompt file's lines that are not JSON objects."""

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """Return the next `count` usable prompts after the cursors, with the unusable ones between them."""

    def evaluation(self, name: str, version: int) -> list[Prompted]:
        """Return all prompts of an evaluation set, for a weight version."""


def run_cycle(
    state: RunState,
    plan: Plan,
    group_filter: GroupFilter,
    normalise: Normalise,
    feed: Feed,
    post_process: PostProcess | None = None,
) -> list[Event]:
    """Return the decisions, then the drawn prompts with their requests, then the evaluations that are due."""
    events = decide(state, plan, group_filter, normalise, post_process)
    count = prompts_to_draw(state, plan)
    if count:
        events += with_requests(draw(state, count, feed), state, plan)
    for name, version in evals_due(state, plan):
        events += evaluation(name, version, plan, feed)
    return events


def draw(state: RunState, count: int, feed: Feed) -> list[Prompted]:
    """Return the next prompts; a branch skips those that its parent had finished."""
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
    """Return events that a lost conductor may not have appended. Those that it did append are identical."""
    events: list[Event] = [*feed.malformed(), *requests_missing(state, plan)]
    for begun in state.evals.values():
        events += evaluation(begun.dataset, begun.version, plan, feed)
    return events


def evaluation(name: str, version: int, plan: Plan, feed: Feed) -> list[Event]:
    """Return the prompts of an evaluation, then their requests. Raises DataError if no prompt is usable."""
    events: list[Event] = list(feed.evaluation(name, version))
    prompts = [event for event in events if isinstance(event, PromptSubmitted)]
    if not prompts:
        refusals = [event for event in events if isinstance(event, PromptRejected)]
        reasons = ReasonCounts(refusal.reason.partition(": ")[2] for refusal in refusals)
        raise DataError(f"evaluation set {name!r} has no usable prompt: {len(events)} lines were refused: {reasons}")
    for prompt in prompts:
        events += requests_for(prompt.group, prompt.tokens, plan, evaluation=name, version=version)
    return events
