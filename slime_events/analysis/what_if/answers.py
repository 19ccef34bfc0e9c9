"""`Answers`: recorded groups that a simulated run gets as answers to its prompts."""

from __future__ import annotations

import random
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from slime_events.analysis.what_if.timed_rollouts import generated, grading, tool_seconds
from slime_events.model import Group, Run, Sample


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A recorded sample: its lengths, times and reward."""

    length: Annotated[int, doc("response length [tokens]")]
    generated: Annotated[int, doc("tokens of it that an engine generated")]
    tools: Annotated[float, doc("time in tool calls [s]")]
    grading: Annotated[float | None, doc("time of a grader [s]; None: the worker of the engine graded it")]
    reward: Annotated[float, doc("reward as graded")]


class AnsweredGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A recorded group whose samples have all ended and have rewards."""

    prompt: Annotated[int, doc("length of the prompt [tokens]")]
    answers: Annotated[tuple[Answer, ...], doc("in the order of indices")]
    kept: Annotated[bool, doc("whether the filter kept it")]


Pools = dict[int, list[AnsweredGroup]]
NEAR = 3
"""Versions within which the lengths of answers are taken to be alike."""


class Answers:
    """Hands out recorded groups.

    A group that is requested under version v gets the groups that were requested under v, in their order. When those
    are used up, it gets a random one of all that were requested under v and the `NEAR` versions before and after it; if
    v has none, the nearest version replaces it.
    """

    def __init__(self, training: Pools, evaluations: dict[str, Pools], seed: int) -> None:
        self._training, self._evaluations, self._seed = training, evaluations, seed
        self._used: dict[int, int] = {}
        self.repeated = 0
        self.taken = 0

    def take(self, version: int) -> AnsweredGroup:
        """Return the answers of the next training group."""
        version = _nearest(self._training, version)
        pool, place = self._training[version], self._used.get(version, 0)
        self._used[version] = place + 1
        self.taken += 1
        if place < len(pool):
            return pool[place]
        self.repeated += 1
        near = [other for other in self._training if abs(other - version) <= NEAR]
        every = [group for other in near for group in self._training[other]]
        return random.Random(f"{self._seed} {version} {place}").choice(every)

    def evaluation(self, dataset: str, version: int) -> list[AnsweredGroup]:
        """Return the answers of an evaluation, of the nearest version that was evaluated; none if none was."""
        pools = self._evaluations.get(dataset)
        return pools[_nearest(pools, version)] if pools else []


def _nearest(pools: Pools, version: int) -> int:
    return version if version in pools else min(pools, key=lambda other: (abs(other - version), other))


def recorded_answers(run: Run, first: int, samples: int) -> tuple[Pools, dict[str, Pools]]:
    """Return the training groups by version, and the evaluations by data set and version.

    first: first version of the run, which becomes version 0. samples: per group; groups with another number, such as
    those whose rollouts gave several samples, are left out.
    """
    training: Pools = {}
    evaluations: dict[str, Pools] = {}
    for group in sorted(run.groups.values(), key=lambda group: group.order):
        members = group.members
        if group.prompt is None or not members or not members[0].requests:
            continue
        answers = tuple(answer for sample in members if (answer := _answer(sample)) is not None)
        if len(answers) != len(members):
            continue
        prompt, version = group.prompt.event, members[0].requests[0].event.min_version - first
        answered = AnsweredGroup(prompt=prompt.tokens.n, answers=answers, kept=was_kept(group))
        if prompt.purpose is Purpose.EVAL:
            evaluations.setdefault(prompt.dataset, {}).setdefault(version, []).append(answered)
        elif len(members) == samples:
            training.setdefault(version, []).append(answered)
    return training, evaluations


def _answer(sample: Sample) -> Answer | None:
    if sample.completed is None or sample.value is None:
        return None
    times = grading(sample)
    return Answer(
        length=sample.length,
        generated=generated(sample),
        tools=tool_seconds(sample),
        grading=None if times is None else times[1] - times[0],
        reward=sample.value,
    )


def was_kept(group: Group) -> bool:
    """Return whether the filter kept a group, or would have if it had not been too old."""
    if group.verdict is None or isinstance(group.verdict.event, GroupAccepted):
        return True
    assert isinstance(group.verdict.event, GroupRejected)
    return group.verdict.event.cause is RejectionCause.STALE
