"""The changes file: what would have been otherwise, a JSON line for each, as `retrain` and a second learner take it.

{"sample": S, "reward": 0.5}                              graded otherwise
{"group": G, "accept": false, "reason": "zero_std_1.0"}   a verdict that would be another
"""

from __future__ import annotations

from typing import IO

import msgspec


class SampleChange(msgspec.Struct, frozen=True):
    """A sample that is graded otherwise. reward: before normalisation."""

    sample: str
    reward: float


class GroupChange(msgspec.Struct, frozen=True):
    """A group that changes sides."""

    group: str
    accept: bool
    reason: str | None


class ChangesFile:
    """Writes to an open file; None writes nowhere. lines: written so far."""

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file, self.lines = file, 0

    def write(self, change: SampleChange | GroupChange) -> None:
        """One line."""
        self.lines += 1
        if self._file is not None:
            self._file.write(msgspec.json.encode(change) + b"\n")
