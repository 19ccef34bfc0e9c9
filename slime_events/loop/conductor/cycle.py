"""`turn`: all that the conductor says at one position of the log, prompts drawn and evaluations begun included.

`decide` needs the state alone; this also needs a `Feed`, which is as pure: the same rows for the same cursors, always.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import UNSET

from schemas.errors import DataError
from schemas.event import Event, Purpose
from schemas.prompts import PromptRejected, PromptSubmitted
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.accept import Judge
from slime_events.loop.conductor.decide import decide, prompts_to_draw, with_requests
from slime_events.loop.conductor.draw import exact_version, requests_for, requests_missing
from slime_events.loop.conductor.evaluate import evals_due
from slime_events.loop.conductor.plan import Plan
from slime_events.loop.conductor.seal import Normalise
from storage.log import Recorded

Prompted = PromptSubmitted | PromptRejected


class Feed(Protocol):
    """Where prompts come from."""

    def hear(self, recorded: Recorded) -> None:
        """Every event in order, before anything is taken after it: what is drawn may follow from what the log says."""

    def malformed(self) -> list[PromptRejected]:
        """The lines of the prompt file that are no rows at all."""

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """The next `count` usable prompts after the cursors, with the unusable ones met on the way."""

    def evaluation(self, name: str, version: int) -> list[Prompted]:
        """All prompts of one evaluation set, for one weight version."""


def turn(state: RunState, plan: Plan, judge: Judge, normalise: Normalise, feed: Feed) -> list[Event]:
    """What is decided, then the prompts that are drawn with their requests, then the evaluations that are due."""
    events = decide(state, plan, judge, normalise)
    count = prompts_to_draw(state, plan)
    if count:
        events += with_requests(draw(state, count, feed), state, plan)
    for name, version in evals_due(state, plan):
        events += evaluation(name, version, plan, feed)
    return events


def draw(state: RunState, count: int, feed: Feed) -> list[Prompted]:
    """The next prompts; a branch passes over those of them that its parent was done with."""
    passed = {} if state.branched is UNSET else state.branched.passed
    if not passed:
        return feed.take(state.cursors, count)
    cursors, found = dict(state.cursors), list[Prompted]()
    while count > 0 and (rows := feed.take(cursors, count)):
        cursors |= {row.source.path: row.source.offset + 1 for row in rows}
        kept = [row for row in rows if row.source.offset not in passed.get(row.source.path, ())]
        count -= sum(isinstance(row, PromptSubmitted) for row in kept)
        found += kept
    return found


def recovery_events(state: RunState, plan: Plan, feed: Feed) -> list[Event]:
    """What a conductor before this one may have said in part or not at all; what it did say is the same event."""
    events: list[Event] = [*feed.malformed(), *requests_missing(state, plan)]
    for begun in state.evals.values():
        events += evaluation(begun.dataset, begun.version, plan, feed)
    return events


def evaluation(name: str, version: int, plan: Plan, feed: Feed) -> list[Event]:
    """The prompts of an evaluation, then their requests. Raises DataError where none is usable."""
    events: list[Event] = list(feed.evaluation(name, version))
    prompts = [event for event in events if isinstance(event, PromptSubmitted)]
    if not prompts:
        raise DataError(f"evaluation set {name!r} has no usable prompt: {len(events)} lines were refused")
    for prompt in prompts:
        events += requests_for(
            prompt.group,
            prompt.tokens,
            samples=plan.eval_samples,
            sampling=plan.eval_sampling or plan.sampling,
            seed=plan.seed,
            min_version=version,
            max_version=exact_version(version, plan),
            purpose=Purpose.EVAL,
        )
    return events
