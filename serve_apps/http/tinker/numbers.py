"""`Numbers`: takes the number of each call of a model, also of refused and lost ones.

A client numbers the calls of a model, and they run in this order. A call that is refused or lost would leave a gap, and
every later call of the model would wait for it.
"""

import contextlib
import time

from schemas.commands import CommandGiven, CommandKind
from schemas.errors import Conflict
from schemas.subjects import of_type
from schemas.text import message_text
from serve_apps.http.tinker import names
from slime_events.core.run.participant import Participant
from storage.log import Recorded, append_all, once

MOST_NUMBER = 10**9 - 1
"""Highest number of a call."""
GAP_S = 60.0
"""Seconds after which a missing call counts as lost: its client died, or its body was too large to be read."""
MOST_MISSING = 1000
"""Most missing numbers before a call that are searched."""
LOST = "this call never arrived, and later calls of its model waited for it"


class Numbers:
    """Reserves numbers in the log. worker: participant of the gateway."""

    def __init__(self, worker: Participant) -> None:
        self._worker = worker

    async def refuse(self, model: str, number: int, kind: CommandKind, source: str, why: str) -> None:
        """Take a number for a call that does not run, unless the number is taken or the model does not exist."""
        if not 1 <= number <= MOST_NUMBER or await self._command(model, 0) is None:
            return
        refused = CommandGiven(
            command=names.command_of(model, number),
            model=model,
            number=number,
            kind=kind,
            source=source,
            refused=message_text(why),
        )
        with contextlib.suppress(Conflict):
            await append_all(self._worker.log, [once(self._worker.enclose(refused))])

    async def fill(self, command: CommandGiven) -> str:
        """Take the numbers before a waiting call that have been missing for `GAP_S`.

        Returns the reason why the call can never run; empty if it can.
        """
        later = await self._command(command.model, command.number)
        waits_since = time.time_ns() if later is None else later.envelope.at
        missing, lost = 0, list[int]()
        for number in range(command.number - 1, 0, -1):
            before = await self._command(command.model, number)
            if before is not None and await self._is_done(command.model, number):
                break
            if before is not None:
                waits_since = min(waits_since, before.envelope.at)
                continue
            missing += 1
            if missing > MOST_MISSING:
                return f"more than {MOST_MISSING:,} calls before it are missing: number a client's calls without gaps"
            if time.time_ns() - waits_since >= GAP_S * 1e9:
                lost.append(number)
        for number in reversed(lost):
            await self.refuse(command.model, number, CommandKind.FORWARD, command.source, LOST)
        return ""

    async def _command(self, model: str, number: int) -> Recorded | None:
        return await self._last("command.given", names.command_of(model, number))

    async def _is_done(self, model: str, number: int) -> bool:
        return await self._last("command.done", names.command_of(model, number)) is not None

    async def _last(self, event_type: str, command: str) -> Recorded | None:
        log = self._worker.log
        return await log.last(of_type(log.run, event_type, command))
