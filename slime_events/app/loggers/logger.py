"""`Logger`: takes the metrics of a run."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slime_events.analysis.metrics.fold import MetricsRow
from slime_events.core.config.metrics import MetricsSettings


class Logger(Protocol):
    """Takes all rows of a run in order, from the first on. What it has from an earlier process it does not repeat.

    where: its rows are.
    """

    where: str

    def write(self, row: MetricsRow) -> None:
        """The next row."""

    def close(self) -> None:
        """No more rows will come."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """The run that is logged. started: UTC nanoseconds. folder: for files that no setting has a place for."""

    name: str
    started: int
    folder: Path

    @property
    def id(self) -> str:
        """The same in every process and incarnation, another one for another run of that name; 16 hex digits."""
        return hashlib.blake2b(f"{self.name} {self.started}".encode(), digest_size=8).hexdigest()


def wandb_mode(settings: MetricsSettings) -> str:
    """What is to be done for W&B: `online`, `offline` or `disabled`."""
    return (settings.wandb_mode or os.environ.get("WANDB_MODE", "online")) if settings.use_wandb else "disabled"
