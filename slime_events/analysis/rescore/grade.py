"""`Regrader`: grades every sample of many groups again: built-in rules in bulk, all others by the graders of a run."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from schemas.errors import InvalidValue
from slime_events.analysis.rescore.bulk_grading import Grade, Task
from slime_events.analysis.rescore.collect import completed_of, is_evaluation, prompt_of
from slime_events.analysis.rescore.rule_process import RuleProcess
from slime_events.core.config.reward import RewardSettings
from slime_events.core.tokens.trajectory import Fetch, Trajectories
from slime_events.model.records import Group
from slime_events.plugins.rewards.choice import Place, choose, grader_name, reward_key
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.rewards.outcome import Graded, failure
from slime_events.plugins.rewards.registry import BOXED, GRADERS, built_in
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import (
    completed_sample,
    initial_metadata,
    shown_metadata,
    shown_prompt,
)

PROCESSES = 2


class Regrader:
    """Use it as `async with`.

    shown: attributes that a user's function sees beside the reward settings, under slime's names. fetch, trajectories:
    give the tokens that it sees; those of graded groups are dropped. graders: name and source digest of the graders so
    far, with their number of samples. only_rules: refuse a sample that no rule of ours grades, but a user's code or a
    server.

    Raises UnknownGrader, PlugPointMissing or PlugPointError on entry if the grader cannot be used.
    """

    def __init__(
        self,
        settings: RewardSettings,
        shown: Mapping[str, object],
        processes: int = PROCESSES,
        *,
        fetch: Fetch | None = None,
        trajectories: Trajectories | None = None,
        only_rules: bool = False,
    ) -> None:
        self._fetch, self._trajectories, self._only_rules = fetch, trajectories, only_rules
        self._settings = msgspec.structs.replace(settings, rm_workers=max(processes, settings.rm_workers))
        self._usual = grader_name(settings, Sample())
        self._shown = shown
        self._free: asyncio.Queue[RuleProcess | None] = asyncio.Queue()
        for _ in range(processes):
            self._free.put_nowait(None)
        self._dispatcher: Dispatcher | None = None
        self._starting = asyncio.Lock()
        self._parts = contextlib.AsyncExitStack()
        self.graders: Counter[tuple[str, str]] = Counter()

    async def __aenter__(self) -> Regrader:
        usual = choose(self._settings, Sample())
        if usual.is_own or usual.place is Place.JUDGE:
            await self._started()
        elif self._usual:
            built_in(self._usual, self._settings.reward_key)
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._parts.aclose()

    async def grade(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """Return a grade per sample of each group, in its order. Exceptions of a grader become failures.

        Raises InvalidValue for a sample that is refused.
        """
        named = [self._names(group) for group in groups]
        ruled = [number for number, names in enumerate(named) if all(map(_is_rule, set(names)))]
        if self._only_rules and len(ruled) < len(groups):
            other = next(group.group for number, group in enumerate(groups) if number not in set(ruled))
            raise InvalidValue(
                f"group {other} names a grader of its own, which is not run here: use slime-events rescore"
            )
        tasks = [task for number in ruled for task in self._tasks(groups[number], named[number])]
        grades = await self._by_rules(tasks)  # None if their process was lost
        left = iter(grades or ())
        graded = {} if grades is None else {number: list(islice(left, len(named[number]))) for number in ruled}
        others = [number for number in range(len(groups)) if number not in graded]
        by_pool = await asyncio.gather(*(self._by_pool(groups[number]) for number in others))
        graded |= dict(zip(others, by_pool, strict=True))
        return [graded[number] for number in range(len(groups))]

    def _names(self, group: Group) -> list[str]:
        """Return the built-in grader of each sample; "" for a user's own."""
        prompt = prompt_of(group)
        own = bool(prompt.metadata or prompt.custom_rm_path)
        return [
            grader_name(self._settings, completed_sample(done, prompt))
            if own or done.metadata or done.attributes
            else self._usual
            for done in map(completed_of, group.samples.values())
        ]

    def _tasks(self, group: Group, names: Sequence[str]) -> list[Task]:
        """Return a task per sample, read from the events: a `Sample` is made only if attributes may override them."""
        key, prompt_event, tasks = (
            reward_key(self._settings, evaluation=is_evaluation(group)),
            prompt_of(group),
            list[Task](),
        )
        shared = str(shown_prompt(prompt_event)), initial_metadata(prompt_event)
        for sample, name in zip(group.samples.values(), names, strict=True):
            done = completed_of(sample)
            if done.attributes:
                seen = completed_sample(done, prompt_event)
                tasks.append(
                    Task(name, key, numbers_of(seen), str(seen.prompt), seen.response, seen.label, seen.metadata)
                )
                continue
            prompt, metadata = shared
            numbers = (done.place.group_index if done.place else None, (done.place or sample).index, None)
            if done.prompt is not None:
                prompt = str(shown_prompt(prompt_event, done))
            if done.metadata:
                metadata = shown_metadata(prompt_event, done)
            tasks.append(Task(name, key, numbers, prompt, done.text, prompt_event.label, metadata))
        if self._trajectories:
            self._trajectories.forget(tuple(group.samples))
        return tasks

    async def _by_rules(self, tasks: Sequence[Task]) -> list[Grade] | None:
        if not tasks:
            return []
        process = await self._free.get()
        try:
            if process is None:
                process = RuleProcess(self._settings)
                self._parts.callback(process.end)
            grades = await asyncio.to_thread(process.grade, tasks)
            if grades is None:
                process = None
        finally:
            self._free.put_nowait(process)
        if grades is not None:
            self.graders.update((task.grader, built_in(task.grader).digest) for task in tasks)
        return grades

    async def _by_pool(self, group: Group) -> list[Grade]:
        dispatcher = await self._started()
        outcomes = await dispatcher.grade_group(self._seen(group, self._fetch), evaluation=is_evaluation(group))
        self.graders.update((outcome.grader, outcome.grader_digest) for outcome in outcomes)
        return [
            outcome.value if isinstance(outcome, Graded) else failure(outcome.kind, outcome.message)
            for outcome in outcomes
        ]

    def _seen(self, group: Group, fetch: Fetch | None) -> list[Sample]:
        """Return the group's samples as graders see them, with tokens if these can be fetched."""
        prompt, trajectories = prompt_of(group), self._trajectories.by_sample if self._trajectories else {}
        seen = [
            completed_sample(completed_of(sample), prompt, fetch, trajectories.get(name))
            for name, sample in group.samples.items()
        ]
        if self._trajectories:
            self._trajectories.forget(tuple(group.samples))
        return seen

    async def _started(self) -> Dispatcher:
        async with self._starting:
            if self._dispatcher is None:
                self._dispatcher = await self._parts.enter_async_context(Dispatcher(self._settings, args=self._shown))
        return self._dispatcher


def numbers_of(sample: Sample) -> tuple[int | None, int | None, int | None]:
    """Return the numbers that seed `random`."""
    return sample.group_index, sample.index, sample.rollout_id


def _is_rule(name: str) -> bool:
    return name.removeprefix(BOXED) in GRADERS
