"""`CommandedTrainer`: the trainer of a run that a client drives (docs/tinker.md).

    command.given -> a pass over its datums -> command.done                       in order, once each
    batch.sealed  -> the passes that the gradients lack, the update
                  -> [step.committed + command.done]
    a save        -> [weights.published + command.done]: engines load only versions that a client requests

If a trainer is lost, its gradients are lost. The next trainer answers open commands, and its step repeats the missing
passes from the log in the same order.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from actors.trainer.ranks import Ranks
from actors.trainer.trainer import Trainer
from actors.trainer.trainer_plan import TrainerPlan
from actors.trainer.version_files import Written
from schemas.arrays import pack_log_probs
from schemas.batches import BatchSealed
from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.errors import DataError, InvalidValue, PlugPointError
from schemas.event import Event
from schemas.steps import StepClaimed, StepCommitted
from schemas.text import message_text
from slime_events.core.run.participant import Participant
from slime_events.core.training.train_batch import StepResult
from slime_events.loop.commands.batch import train_pass
from slime_events.loop.commands.order import CommandOrder, Due
from slime_events.loop.training.pending_batches import PendingBatches
from storage.blobs import BlobStore
from storage.log import Recorded
from storage.payloads import fetch, offload_async
from storage.weights.store import WeightStore

log = logging.getLogger(__name__)
SKIPPED = "the gradient's norm is not finite, so no step was taken: weights and optimizer are unchanged"
PASSES = (CommandKind.FORWARD, CommandKind.FORWARD_BACKWARD)


class CommandedTrainer(Trainer):
    def __init__(
        self,
        worker: Participant,
        ranks: Ranks,
        store: WeightStore,
        batches: PendingBatches,
        plan: TrainerPlan,
        *,
        blobs: BlobStore,
    ) -> None:
        super().__init__(worker, ranks, store, batches, plan)
        self._fetch, self._offload = partial(fetch, blobs=blobs), partial(offload_async, blobs=blobs)
        self._order = CommandOrder()

    @property
    def _followed(self) -> tuple[type[Event], ...]:
        return StepCommitted, StepClaimed, BatchSealed, CommandGiven, CommandDone

    async def observe(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        self._order.first = self._trained.first
        self._order.apply(event)
        if isinstance(event, CommandDone):
            if event.path and not event.error:
                self._kept.add(event.version)
        else:
            await super().observe(recorded)

    async def work(self) -> None:
        """Carry out the client's commands before its next update, then the update."""
        for due in list(self._order.due.values()):
            if not due.refused and (due.step != self._version or due.ends):
                break
            await self._carry_out(due)
        await super().work()

    async def _carry_out(self, due: Due) -> None:
        command, begun = due.command, time.perf_counter()
        done, more = CommandDone(command=command.command, version=self._version), list[Event]()
        if due.refused:
            done = CommandDone(command=command.command, version=self._version, error=due.refused)
        elif command.kind in PASSES:
            try:
                done = await self._pass(command, begun)
            except (DataError, InvalidValue, PlugPointError, KeyError, ValueError) as error:
                log.warning("%s cannot be carried out", command.command, exc_info=error)
                done = CommandDone(command=command.command, version=self._version, error=message_text(error))
        elif command.kind is not CommandKind.CREATE_MODEL:
            done, more = await self._save(command, begun)
        await self._worker.append([*more, await self._offload(done)])
        for event in (*more, done):
            self._trained.apply(event)
            self._order.apply(event)

    async def _pass(self, command: CommandGiven, begun: float) -> CommandDone:
        request = train_pass(command, self._fetch)
        result = await self._ranks.run_pass(request, backward=command.kind is CommandKind.FORWARD_BACKWARD)
        return CommandDone(
            command=command.command,
            version=self._version,
            log_probs=pack_log_probs(result.log_probs),
            metrics={"loss:sum": result.loss},
            seconds=time.perf_counter() - begun,
        )

    async def _save(self, command: CommandGiven, begun: float) -> tuple[CommandDone, list[Event]]:
        """Publish the version to the engines and, if the client saves its state, save a checkpoint with optimizer."""
        version, more = self._version, list[Event]()
        if version > self._published:
            more.append(self._files.published(Written(await self._write(version), True), self._shown))
            self._published = version
        if command.kind is CommandKind.SAVE_WEIGHTS and version > self._trained.first and version not in self._saved:
            await self._saver.save(version, self._trained.committed[version], at_once=True)
        path = str(command.arguments.get("path") or "")
        if path:
            self._kept.add(version)
        seconds = time.perf_counter() - begun
        return CommandDone(command=command.command, version=version, path=path, seconds=seconds), more

    async def _with_step(self, sealed: BatchSealed, result: StepResult) -> list[Event]:
        metrics = result.metrics
        error = SKIPPED if metrics.get("skipped") else ""
        return [CommandDone(command=sealed.commands[-1], version=sealed.step + 1, metrics=metrics, error=error)]
