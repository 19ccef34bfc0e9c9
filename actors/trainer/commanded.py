"""`CommandedTrainer`: the trainer of a run that a client drives (docs/tinker.md).

    command.given -> a pass over its datums -> command.done                       each in its turn, once
    batch.sealed  -> the passes that the gradients lack, the update
                  -> [step.committed + command.done]
    a save        -> [weights.published + command.done]: engines load what a client asks for, and nothing else

A trainer that is lost takes its gradients with it. The next one answers what has no answer, and a step makes those that
are lacking from the log, in the same order.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

from actors.trainer.ranks import Ranks
from actors.trainer.trainer import Trainer
from schemas.arrays import pack_log_probs
from schemas.batches import BatchSealed
from schemas.commands import CommandDone, CommandGiven, CommandKind
from schemas.errors import DataError, InvalidValue, PlugPointError
from schemas.event import Event
from schemas.steps import StepClaimed, StepCommitted
from schemas.text import message_text
from slime_events.core.run.participant import Participant
from slime_events.core.train_batch import StepResult
from slime_events.loop.commands.batch import train_pass
from slime_events.loop.commands.order import CommandOrder, Due
from storage.blobs import BlobStore
from storage.log import Recorded
from storage.payloads import fetch, offload_async

log = logging.getLogger(__name__)
SKIPPED = "the gradient's norm is not finite, so no step was taken: weights and optimizer are as before"
PASSES = (CommandKind.FORWARD, CommandKind.FORWARD_BACKWARD)


class CommandedTrainer(Trainer):
    """See the module's docstring."""

    def __init__(self, worker: Participant, ranks: Ranks, *args: Any, blobs: BlobStore, **more: Any) -> None:
        super().__init__(worker, ranks, *args, **more)
        self._fetch, self._offload = partial(fetch, blobs=blobs), partial(offload_async, blobs=blobs)
        self._order = CommandOrder()

    @property
    def _followed(self) -> tuple[type[Event], ...]:
        return StepCommitted, StepClaimed, BatchSealed, CommandGiven, CommandDone

    async def take_in(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        self._order.first = self._trained.first
        self._order.apply(event)
        if isinstance(event, CommandDone):
            if event.path and not event.error:
                self._kept.add(event.version)
        else:
            await super().take_in(recorded)

    async def go_on(self) -> None:
        """What the client asks for before its next update, then that."""
        for due in list(self._order.due.values()):
            if not due.refused and (due.step != self._version or due.ends):
                break
            await self._carry_out(due)
        await super().go_on()

    async def _carry_out(self, due: Due) -> None:
        given, begun = due.given, time.perf_counter()
        done, more = CommandDone(command=given.command, version=self._version), list[Event]()
        if due.refused:
            done = CommandDone(command=given.command, version=self._version, error=due.refused)
        elif given.kind in PASSES:
            try:
                done = await self._pass(given, begun)
            except (DataError, InvalidValue, PlugPointError, KeyError, ValueError) as error:
                log.warning("%s cannot be carried out", given.command, exc_info=error)
                done = CommandDone(command=given.command, version=self._version, error=message_text(error))
        elif given.kind is not CommandKind.CREATE_MODEL:
            done, more = await self._save(given, begun)
        await self._worker.append([*more, await self._offload(done)])
        for event in (*more, done):
            self._trained.apply(event)
            self._order.apply(event)

    async def _pass(self, given: CommandGiven, begun: float) -> CommandDone:
        asked = train_pass(given, self._fetch)
        result = await self._ranks.run_pass(asked, backward=given.kind is CommandKind.FORWARD_BACKWARD)
        return CommandDone(
            command=given.command,
            version=self._version,
            log_probs=pack_log_probs(result.log_probs),
            metrics={"loss:sum": result.loss},
            seconds=time.perf_counter() - begun,
        )

    async def _save(self, given: CommandGiven, begun: float) -> tuple[CommandDone, list[Event]]:
        """Give the version to the engines, and for a state a checkpoint with its optimizer."""
        version, more = self._version, list[Event]()
        if version > self._published:
            more.append(self._as_published(await self._write(version)))
            self._published = version
        if given.kind is CommandKind.SAVE_WEIGHTS and version > self._trained.first and version not in self._saved:
            await self._saver.save(version, self._trained.committed[version], at_once=True)
        path = str(given.arguments.get("path") or "")
        if path:
            self._kept.add(version)
        seconds = time.perf_counter() - begun
        return CommandDone(command=given.command, version=version, path=path, seconds=seconds), more

    async def _with_step(self, sealed: BatchSealed, result: StepResult) -> list[Event]:
        metrics = result.metrics
        error = SKIPPED if metrics.get("skipped") else ""
        return [CommandDone(command=sealed.commands[-1], version=sealed.step + 1, metrics=metrics, error=error)]
