"""`Logger`: takes the metrics of a run."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from schemas.doc import doc
from slime_events.analysis.metrics.fold import MetricsRow
from slime_events.core.config.metrics import MetricsSettings


class Logger(Protocol):
    """Takes all rows of a run in order, from the first. Does not repeat rows that an earlier process wrote."""

    where: Annotated[str, doc("Path or address that the rows are written to")]

    def write(self, row: MetricsRow) -> None: ...

    def close(self) -> None:
        """Finish after the last row."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """The run whose metrics are logged."""

    name: str
    started: Annotated[int, doc("UTC nanoseconds")]
    folder: Annotated[Path, doc("Folder for files that no setting places elsewhere")]

    @property
    def id(self) -> str:
        """16 hex digits: equal in every process and incarnation of the run, different for another run of that name."""
        return hashlib.blake2b(f"{self.name} {self.started}".encode(), digest_size=8).hexdigest()


def wandb_mode(settings: MetricsSettings) -> str:
    """Return W&B's mode: `online`, `offline` or `disabled`."""
    return (settings.wandb_mode or os.environ.get("WANDB_MODE", "online")) if settings.use_wandb else "disabled"
