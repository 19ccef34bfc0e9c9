"""`Retrainer`: recorded steps through the ranks once more, each compared with what the run made of it.

    log -> `RecordedStep` n + 1 | ranks train n | the result of n - 1 is judged

The three go on at the same time: reading and building batches in the event loop, training wherever the ranks are,
digests in a thread.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from actors.learner.followed_batches import FollowedBatches
from actors.trainer.ranks import Ranks, StepResult, train
from schemas.batches import BatchSealed
from schemas.errors import StorageError
from schemas.ids import group_of
from schemas.rollouts import RolloutCompleted
from schemas.runs import Branched
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from slime_events.analysis.retrain.difference import Difference, Distance, Retrained, distance, training_differences
from slime_events.analysis.retrain.recorded_steps import RecordedStep, recorded_step, recorded_steps
from slime_events.analysis.retrain.version_chain import Chain
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.loop.learner.batches import DerivedBatch
from slime_events.loop.training.training_state import Digests
from storage.cancellation import end_all
from storage.log import Readable
from storage.weights.files import TensorView
from storage.weights.store import TensorBytes, WeightStore, digest_of


async def run_steps(opened: OpenedRun, chain: Chain, steps: range) -> AsyncGenerator[RecordedStep, None]:
    """Those of `steps`, which are committed, in order. Raises StorageError, RunNotFound for a parent that is gone."""
    temperature = opened.settings.rollout.rollout_temperature
    branched = chain.started.branched if chain.started else None
    if branched is None or not branched.follows:
        async for step in recorded_steps(opened.log, opened.fetch, steps, temperature=temperature):
            yield step
        return
    async with open_run(branched.where) as parent:
        batches = FollowedBatches(parent.fetch, temperature=temperature, shared=branched.version)
        async for step in followed_steps(opened.log, parent.log, batches, steps, branched):
            yield step


async def followed_steps(
    own: Readable, parent: Readable, batches: FollowedBatches, steps: range, branched: Branched
) -> AsyncGenerator[RecordedStep, None]:
    """Of a learner: one pass over the parent's log, which holds no other rollouts than those of batches to come."""
    committed = await _committed(own, steps)
    lacking: dict[int, set[str]] = {}
    seen: dict[int, set[str]] = {step: set() for step in steps}
    async for recorded in own.read(1, of_type(own.run, "batch.sealed")):
        sealed = recorded.envelope.event
        if isinstance(sealed, BatchSealed) and sealed.step in steps:
            batches.apply(sealed, recorded.position)
            lacking[sealed.step] = set(sealed.samples)
    wanted = {group_of(sample): step for step, samples in lacking.items() for sample in samples}
    left = list(steps)
    async for recorded in parent.read():
        event = recorded.envelope.event
        sample = getattr(event, "sample", "")
        step = wanted.get(group_of(sample))
        if step in seen:
            batches.read(event, recorded.position)
            seen[step].add(sample)
            if isinstance(event, RolloutCompleted):
                lacking[step].discard(sample)
        while left and not lacking[left[0]]:
            step = left.pop(0)
            yield await asyncio.to_thread(recorded_step, batches, committed[step], {})
            batches.forget(step)
            batches.take(DerivedBatch(unused=tuple(seen.pop(step))))
        if not left:
            return
    if left:
        raise StorageError(
            f"step {left[0]} of run {own.run} was trained on rollouts that the log of {parent.run} at {branched.where} "
            "does not hold"
        )


async def _committed(own: Readable, steps: range) -> dict[int, StepCommitted]:
    steps_committed: dict[int, StepCommitted] = {}
    async for recorded in own.read(1, of_type(own.run, "step.committed")):
        event = recorded.envelope.event
        if isinstance(event, StepCommitted) and event.step in steps:
            steps_committed[event.step] = event
    return steps_committed


Weights = Callable[[int], Mapping[str, TensorView] | None]
"""The recorded weights of a version; None where they are not there."""


@dataclass(frozen=True, slots=True)
class SameDigests:
    """Judges that a step came out bit for bit. keep: where the weights of every step are written."""

    keep: WeightStore | None = None

    def __call__(
        self, step: RecordedStep, result: StepResult, tensors: list[TensorBytes]
    ) -> tuple[tuple[Difference, ...], Distance | None]:
        version = step.committed.version
        weights = self.keep.write(version, tensors, step.committed.step).digest if self.keep else digest_of(tensors)
        return step.differences + training_differences(step.committed, Digests(weights, result.optimizer_digest)), None


@dataclass(frozen=True, slots=True)
class FarFrom:
    """Judges by how much the weights are other ones, which is no error: on another topology sums are other sums."""

    weights: Weights

    def __call__(
        self, step: RecordedStep, result: StepResult, tensors: list[TensorBytes]
    ) -> tuple[tuple[Difference, ...], Distance | None]:
        recorded = self.weights(step.committed.version)
        return step.differences, None if recorded is None else distance(recorded, tensors)


class Retrainer:
    """on_step: called with every judged step, in order. visit: called at the versions of `visits`, when the ranks are
    there and every digest was equal.
    """

    def __init__(
        self,
        ranks: Ranks,
        judge: SameDigests | FarFrom,
        on_step: Callable[[Retrained], None] = lambda step: None,
        *,
        visit: Callable[[int], Awaitable[None]] | None = None,
        visits: frozenset[int] = frozenset(),
    ) -> None:
        self._ranks, self._judge, self._on_step = ranks, judge, on_step
        self._visit, self._visits = visit, visits

    async def run(self, steps: AsyncGenerator[RecordedStep, None]) -> Retrained | None:
        """Train them; the first that differs, at which it ends, or None. The ranks are at the step before it then, or
        have trained it. Raises what the ranks and the log raise.
        """
        building = asyncio.ensure_future(anext(steps, None))
        training: asyncio.Future[StepResult] | None = None
        judging: asyncio.Future[Retrained] | None = None
        try:
            while (step := await building) is not None:
                if step.batch is None:
                    return await self._report(judging) or self._tell(_untrained(step))
                building = asyncio.ensure_future(anext(steps, None))
                begun = time.perf_counter()
                training = asyncio.ensure_future(train(self._ranks, step.batch))
                wrong = await self._report(judging)
                result = await training
                if wrong:
                    return wrong
                tensors = _copied(await self._ranks.export_weights())
                judging = asyncio.ensure_future(self._judged(step, result, tensors, time.perf_counter() - begun))
                if step.committed.version in self._visits and self._visit is not None:
                    if wrong := await self._report(judging):
                        return wrong
                    judging = None
                    await self._visit(step.committed.version)
            return await self._report(judging)
        finally:
            await end_all(*(task for task in (building, training, judging) if task is not None))
            await steps.aclose()

    async def _judged(
        self, step: RecordedStep, result: StepResult, tensors: list[TensorBytes], seconds: float
    ) -> Retrained:
        differences, apart = await asyncio.to_thread(self._judge, step, result, tensors)
        committed = step.committed
        return Retrained(committed.step, committed.version, committed.tokens, seconds, differences, apart)

    async def _report(self, judged: asyncio.Future[Retrained] | None) -> Retrained | None:
        """Report a judged step; returns it if it differs."""
        return None if judged is None else self._tell(await judged)

    def _tell(self, step: Retrained) -> Retrained | None:
        self._on_step(step)
        return step if step.differences else None


def _untrained(step: RecordedStep) -> Retrained:
    committed = step.committed
    return Retrained(committed.step, committed.version, committed.tokens, 0.0, step.differences)


def _copied(tensors: list[TensorBytes]) -> list[TensorBytes]:
    """As they are now: those of a rank in this process would change with its next step."""
    return [(name, dtype, shape, bytes(data)) for name, dtype, shape, data in tensors]
