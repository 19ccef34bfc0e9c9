"""`Figure`: one measured number beside what it should be."""

from __future__ import annotations

import enum
import os

import msgspec


class Better(enum.StrEnum):
    """Which way is better."""

    HIGHER = "higher"
    LOWER = "lower"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """value: None where it could not be measured, for the reason in `note`. target: None where none was set."""

    name: str
    value: float | None
    unit: str
    target: float | None = None
    better: Better = Better.HIGHER
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without a target. What could not be measured has not reached it."""
        if self.target is None:
            return None
        if self.value is None:
            return False
        return self.value >= self.target if self.better is Better.HIGHER else self.value <= self.target


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A figure as it was taken. load: of the machine in the last minute, before and after, beside its `cores`."""

    benchmark: str
    figure: Figure
    load: tuple[float, float]
    cores: int
    seconds: float


def load() -> float:
    """Processes that ran or waited for a core, mean of the last minute."""
    return os.getloadavg()[0]
