"""`TimedRollout`: when a recorded rollout ran, and how much it did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

from schemas.doc import doc
from schemas.rewards import RewardAssigned
from schemas.rollouts import Maker
from schemas.turns import TurnRole
from slime_events.model import Run, Sample

NANO = 1e-9


class TimedRollout(NamedTuple):
    """A rollout that an engine made in one attempt."""

    sample: Annotated[str, doc("id of its sample")]
    engine: Annotated[str, doc("worker that made it")]
    version: Annotated[int, doc("weight version that its request asks for")]
    requested: Annotated[float, doc("time of its request [s, UTC]")]
    begin: Annotated[float, doc("begin of the generation [s, UTC]")]
    end: Annotated[float, doc("time of rollout.completed [s, UTC]")]
    tokens: Annotated[int, doc("generated tokens")]
    tools: Annotated[float, doc("time in tool calls [s]")]


def timed_rollouts(run: Run) -> list[TimedRollout]:
    """Return all rollouts of engines with one attempt, in the order of their begin."""
    return sorted(_timed(run.samples.values()), key=lambda rollout: rollout.begin)


def _timed(samples: Iterable[Sample]) -> Iterator[TimedRollout]:
    for sample in samples:
        done = sample.completed
        if done is None or done.event.rollout or len(sample.requests) != 1 or sample.interruptions:
            continue
        request = sample.requests[0]
        if request.event.maker is not Maker.ENGINE:
            continue
        end, timings = done.at * NANO, done.event.timings
        yield TimedRollout(
            sample=sample.sample,
            engine=done.event.engine,
            version=request.event.min_version,
            requested=request.at * NANO,
            begin=end - timings.generating - timings.updating,
            end=end,
            tokens=generated(sample),
            tools=tool_seconds(sample),
        )


def generated(sample: Sample) -> int:
    """Return the tokens that an engine generated: of a rollout in turns, without the results of tools."""
    if not sample.turns:
        return sample.length
    return sum(turn.event.tokens.n for turn in sample.turns if turn.event.role is TurnRole.ASSISTANT)


def tool_seconds(sample: Sample) -> float:
    """Return the time that a rollout spent in tool calls [s]."""
    return sum(turn.event.seconds for turn in sample.turns if turn.event.role is TurnRole.TOOL)


def grading(sample: Sample) -> tuple[float, float] | None:
    """Return begin and end of the grading of a sample [s, UTC]; None if no grader process graded it.

    The worker that made a rollout may grade it too: then no time of a grader is used.
    """
    reward, done = sample.reward, sample.completed
    if reward is None or done is None or reward.producer == done.producer:
        return None
    if not isinstance(reward.event, RewardAssigned):
        return None
    return reward.at * NANO - reward.event.seconds, reward.at * NANO
