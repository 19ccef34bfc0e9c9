"""`Numbers`: a model's calls are carried out by their numbers, so each number is taken, also by a call that is refused.

A client counts its calls. One that is refused, or never comes, would leave a gap, and every later call of the model
would wait for it.
"""

import contextlib
import time

from schemas.commands import CommandGiven, CommandKind
from schemas.errors import Conflict
from schemas.subjects import of_type
from schemas.text import message_text
from serve_apps.tinker import names
from slime_events.core.run.participant import Participant
from storage.log import Recorded, append_all, once

MOST_NUMBER = 10**9 - 1
"""Of a call, as its name has it."""
GAP_S = 60.0
"""Seconds after which a call whose number was left out is taken to have been lost: its client died, or its body was too
large to be read."""
MOST_MISSING = 1000
"""Numbers before a call that are looked for."""
LOST = "this call never came, and later ones of its model have waited for it"


class Numbers:
    """worker: of the gateway."""

    def __init__(self, worker: Participant) -> None:
        self._worker = worker

    async def refuse(self, model: str, number: int, kind: CommandKind, source: str, why: str) -> None:
        """Take a number for a call that is not carried out, unless it was used or its model is not there."""
        if not 1 <= number <= MOST_NUMBER or await self._given(model, 0) is None:
            return
        given = CommandGiven(
            command=names.command_of(model, number),
            model=model,
            number=number,
            kind=kind,
            source=source,
            refused=message_text(why),
        )
        with contextlib.suppress(Conflict):
            await append_all(self._worker.log, [once(self._worker.enclose(given))])

    async def fill(self, given: CommandGiven) -> str:
        """Take the numbers before a call that waits, where they were left out for long. Why it cannot be carried out
        ever; empty where it can.
        """
        later = await self._given(given.model, given.number)
        waits_since = time.time_ns() if later is None else later.envelope.at
        missing, lost = 0, list[int]()
        for number in range(given.number - 1, 0, -1):
            before = await self._given(given.model, number)
            if before is not None and await self._is_done(given.model, number):
                break
            if before is not None:
                waits_since = min(waits_since, before.envelope.at)
                continue
            missing += 1
            if missing > MOST_MISSING:
                return f"more than {MOST_MISSING:,} calls before it never came: number a client's calls one by one"
            if time.time_ns() - waits_since >= GAP_S * 1e9:
                lost.append(number)
        for number in reversed(lost):
            await self.refuse(given.model, number, CommandKind.FORWARD, given.source, LOST)
        return ""

    async def _given(self, model: str, number: int) -> Recorded | None:
        return await self._last("command.given", names.command_of(model, number))

    async def _is_done(self, model: str, number: int) -> bool:
        return await self._last("command.done", names.command_of(model, number)) is not None

    async def _last(self, event_type: str, command: str) -> Recorded | None:
        log = self._worker.log
        return await log.last(of_type(log.run, event_type, command))
