"""A run of many steps of one sample each, and a log that counts the questions it is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from schemas.arrays import pack_tokens
from schemas.event import Event
from schemas.prompts import Source
from schemas.rollouts import StopReason, WeightSpan
from slime_events.core.run.run_reader import OpenedRun
from storage.log import Readable, Recorded, Subjects
from tests import made
from tests.lineage.opened import opened


def step_events(step: int, group: str | None = None) -> list[Event]:
    """One step from its prompt to its weights."""
    group = group or f"train-0-{step:06d}"
    return [*rollout_events(step, group), *batch_events(step, group)]


def rollout_events(step: int, group: str) -> list[Event]:
    """A group of one sample, from its prompt to its verdict, made by version `step`."""
    sample, prompt = f"{group}-s0", pack_tokens([1, 2])
    return [
        made.submitted(group, text="?", tokens=prompt, source=Source(path="train.jsonl", line=step + 1)),
        made.requested(sample, prompt=prompt, max_new_tokens=2, seed=step),
        made.completed(
            sample, prompt, length=2, prompt_length=2, stop=StopReason.LENGTH, spans=(WeightSpan(0, 2, step),),
            log_probs=[-1.0, -1.0],
        ),
        made.assigned(sample, grader="exact"),
        made.accepted(group, samples=(sample,), rewards=(1.0,)),
    ]  # fmt: skip


def batch_events(step: int, group: str) -> list[Event]:
    """A batch of that group, trained."""
    return [
        made.sealed(
            step, groups=(group,), samples=(f"{group}-s0",), rewards=(0.0,), raw_rewards=(1.0,), digest=f"b{step}",
        ),
        made.committed(step, batch_digest=f"b{step}", weights_digest=f"w{step + 1}", optimizer_digest="", tokens=4),
        made.published(step + 1, parent=step, url="", digest=f"w{step + 1}"),
    ]  # fmt: skip


async def long_run(steps: int) -> OpenedRun:
    """Record a run of `steps` steps."""
    log_events: list[Event] = [made.started()]
    log_events += [event for step in range(steps) for event in step_events(step)]
    return await opened(log_events, "long")


class Counting:
    """A log that counts how often it is asked for anything."""

    def __init__(self, log: Readable) -> None:
        self._log, self.looks = log, 0

    @property
    def run(self) -> str:
        return self._log.run

    def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        assert subject is not None, "it read everything"
        self.looks += 1
        return self._log.read(start, subject, follow=follow)

    async def last(self, subject: str) -> Recorded | None:
        self.looks += 1
        return await self._log.last(subject)

    async def last_of_each(self, subjects: Sequence[str]) -> dict[str, Recorded]:
        self.looks += 1
        return await self._log.last_of_each(subjects)

    async def subjects(self, pattern: str, start: int = 1) -> list[str]:
        self.looks += 1
        return await self._log.subjects(pattern, start)

    async def position(self) -> int:
        return await self._log.position()
