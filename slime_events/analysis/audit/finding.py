"""`Finding`: one thing in a log that must not be."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """check: which found it. position, event: of what it is about (0 and the run where it is about the whole log).

    wrong: what is there. means: what follows from it.
    """

    check: str
    position: int
    event: str
    wrong: str
    means: str

    def __str__(self) -> str:
        where = f"position {self.position}, {self.event}" if self.position else self.event
        return f"{where}: {self.wrong}, so {self.means}"
