"""`RunSource`: the runs that a console serves. The command implements it: only the launcher's room knows what runs."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Annotated, Protocol

import msgspec

from schemas.doc import doc
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model.run_status import RunStatus


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the list."""

    run: Annotated[str, doc("name in the console's URLs")]
    status: Annotated[RunStatus | None, doc("None if the run cannot be read")]
    steps: Annotated[int | None, doc("number of committed steps; None if the run cannot be read")]
    target: Annotated[int | None, doc("number of steps that the run trains in all; None if unknown")]
    at: Annotated[float | None, doc("time of the last event, UTC [s since 1970]")]
    reason: Annotated[str, doc("why the run failed, or why it cannot be read; empty if neither")]


class RunSource(Protocol):
    """The served runs."""

    @property
    def where(self) -> str:
        """Folder of the runs, or the one run that is served."""

    async def listed(self) -> tuple[ListedRun, ...]:
        """Return all runs, the run with the newest event first."""

    def open(self, run: str) -> AbstractAsyncContextManager[OpenedRun]:
        """Open a listed run. Raises RunNotFound, StorageError, ConfigError."""

    def argument(self, run: str) -> str:
        """Return the arguments that name a run to a command, quoted for a shell. Raises RunNotFound."""

    async def is_on(self, opened: OpenedRun) -> bool:
        """Return whether the run's launcher is running."""
