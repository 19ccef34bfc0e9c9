"""`VirtualTrainer`: a trainer in virtual time, which trains batches one by one in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.event import Event
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.analysis.what_if.clock import Clock
from slime_events.analysis.what_if.delays import Delays
from slime_events.analysis.what_if.trainer_speed import TrainerSpeed
from slime_events.loop.conductor.plan import Plan

OnCommit = Callable[[Sequence[Event]], None]
OnWork = Callable[[bool], None]


class VirtualTrainer:
    """Calls `on_commit` with the events of each commit, and `on_work` when training begins and ends."""

    def __init__(
        self, clock: Clock, plan: Plan, speed: TrainerSpeed, delays: Delays, on_commit: OnCommit, on_work: OnWork
    ) -> None:
        self._clock, self._plan, self._speed, self._delays = clock, plan, speed, delays
        self._on_commit, self._on_work = on_commit, on_work
        self._queue: deque[tuple[BatchSealed, int, Callable[[], bool]]] = deque()
        self._busy = False
        self.tokens: list[int] = []

    def train(self, batch: BatchSealed, tokens: int, generating: Callable[[], bool]) -> None:
        """Train a batch.

        tokens: number that passes through the model. generating: whether an engine generates at the time of the call.
        """
        self._queue.append((batch, tokens, generating))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if not self._queue:
            return
        batch, tokens, generating = self._queue.popleft()
        self.tokens.append(tokens)

        def begin() -> None:
            seconds = self._speed.seconds(tokens, generating=generating())
            self._on_work(True)
            self._clock.after(seconds, lambda: self._commit(batch, seconds))

        self._clock.after(self._delays.to_commit, begin)

    def _commit(self, batch: BatchSealed, seconds: float) -> None:
        self._on_work(False)
        step, version = batch.step, batch.step + 1
        digest = f"v{version}"
        events: list[Event] = [
            StepCommitted(
                step=step,
                batch_digest=batch.digest,
                parent_version=step,
                version=version,
                weights_digest=digest,
                optimizer_digest="",
                samples=len(batch.samples),
                tokens=0,
                seconds={"train": seconds},
            )
        ]
        if version % self._plan.publish_every == 0 or version == self._plan.steps:
            events.append(WeightsPublished(version=version, parent=step, url="", digest=digest, bytes=0))
        saving = 0.0
        if self._plan.saves.due(version):
            saving = self._delays.saving
            events.append(
                CheckpointSaved(version=version, url="", weights_digest=digest, optimizer_digest="", seconds=saving)
            )
        self._on_commit(events)
        self._clock.after(saving, self._next)
