"""`Prompts`: what was submitted for the groups whose rollouts are made here, read from the log and kept for a while."""

from __future__ import annotations

import asyncio

from schemas.errors import StorageError
from schemas.prompts import PromptSubmitted
from schemas.subjects import about
from storage.log import EventLog

KEPT = 1024
"""Groups; one that comes after so many others is read again."""


class Prompts:
    """One reading serves the samples of a group."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._readings: dict[str, asyncio.Task[PromptSubmitted]] = {}

    async def of(self, group: str) -> PromptSubmitted:
        """The prompt of a group. Raises StorageError where the log holds none."""
        if group not in self._readings:
            self._readings[group] = asyncio.create_task(self._read(group))
            if len(self._readings) > KEPT:
                del self._readings[next(iter(self._readings))]
        try:
            return await asyncio.shield(self._readings[group])
        except BaseException:
            self._readings.pop(group, None)
            raise

    async def _read(self, group: str) -> PromptSubmitted:
        found = await self._log.last(about(self._log.run, "prompt", group))
        if found is None or not isinstance(found.envelope.event, PromptSubmitted):
            raise StorageError(
                f"the log of run {self._log.run} holds no prompt of group {group}, though its rollouts were asked for: "
                "`slime-events audit` says what else is missing"
            )
        return found.envelope.event
