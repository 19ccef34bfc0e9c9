"""`Figure`: a measured number with its target."""

from __future__ import annotations

import enum
import os
from typing import Annotated

import msgspec

from schemas.doc import doc


class Better(enum.StrEnum):
    """Direction in which a figure is better."""

    HIGHER = "higher"
    LOWER = "lower"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A measured number."""

    name: str
    value: Annotated[float | None, doc("None if it could not be measured; `note` has the reason")]
    unit: str
    target: Annotated[float | None, doc("None if there is no target")] = None
    better: Better = Better.HIGHER
    note: Annotated[str, doc("How the figure was measured, and its parts")] = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without a target. Without a value it is not reached."""
        if self.target is None:
            return None
        if self.value is None:
            return False
        return self.value >= self.target if self.better is Better.HIGHER else self.value <= self.target


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with the conditions of its measurement."""

    benchmark: str
    figure: Figure
    load: Annotated[tuple[float, float], doc("Load average of the last minute, before and after")]
    cores: int
    seconds: Annotated[float, doc("Duration of the benchmark")]


def load() -> float:
    """Return the load average of the last minute: processes that run or wait for a core."""
    return os.getloadavg()[0]
