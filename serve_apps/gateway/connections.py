"""`Connections`: those of one server, how long each may keep it waiting, and which makes room for another.

A connection waits for its client (for a head, or the rest of a body after the answer), or its request is being
answered. Who waits has a deadline, and gives way where there are too many; an answer may take as long as it takes.
"""

import asyncio
import contextlib
import resource
import time
from collections import Counter
from typing import Protocol

LOOK_S = 0.5
"""Seconds between two looks at the deadlines of all connections."""
RESERVE = 64
"""Connections beyond the most, and beyond those of one address: for `/healthz`, and to say that there are too many."""
FILES = 256
"""File descriptors that are left to everything else of the process."""


class Connection(Protocol):
    """What is known of one."""

    address: str

    def look(self, now: float) -> None:
        """End it where its client is late. now: seconds of a clock that only goes forward."""

    def drop(self) -> None:
        """End it at once."""


class Connections:
    """most: requests that are answered at once, and connections but for a reserve. share: of them that one address may
    have, from 0 to 1: agents on one machine have many.
    """

    def __init__(self, most: int, share: float) -> None:
        self.most, self.per_address = most, max(1, int(most * share))
        self._waiting: dict[Connection, None] = {}  # the one that has waited longest is the first
        self._busy: dict[Connection, None] = {}
        self._of_address, self._busy_of_address = Counter[str](), Counter[str]()
        self._looking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._busy)

    def add(self, connection: Connection) -> None:
        """A new one waits. Where there are too many, the one that has waited longest ends; it may be this one."""
        self._waiting[connection] = None
        self._of_address[connection.address] += 1
        if self._of_address[connection.address] > self.per_address + RESERVE:
            self._make_room(connection.address)
        if len(self) > self.most + RESERVE:
            self._make_room(None)
        if self._looking is None:
            self._look_later()

    def begin(self, connection: Connection) -> None:
        """Its request is being answered from now on."""
        if connection in self._waiting:
            del self._waiting[connection]
            self._busy[connection] = None
            self._busy_of_address[connection.address] += 1

    def end(self, connection: Connection) -> None:
        """It is answered, and waits for the next."""
        if connection in self._busy:
            del self._busy[connection]
            _less(self._busy_of_address, connection.address)
            self._waiting[connection] = None

    def remove(self, connection: Connection) -> None:
        """It is gone."""
        self.end(connection)
        if connection in self._waiting:
            del self._waiting[connection]
            _less(self._of_address, connection.address)

    def is_full(self, connection: Connection) -> bool:
        """Whether so many requests are being answered that its next one has to come again."""
        return len(self._busy) >= self.most or self._busy_of_address[connection.address] >= self.per_address

    def _make_room(self, address: str | None) -> None:
        """address: of which one has to end; None for any."""
        longest = (one for one in self._waiting if address is None or one.address == address)
        if (connection := next(longest, None)) is not None:
            self.remove(connection)
            connection.drop()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        for one in (*self._waiting, *self._busy):
            one.look(now)
        self._looking = None
        if len(self):
            self._look_later()


def _less(counter: Counter[str], address: str) -> None:
    counter[address] -= 1
    if counter[address] <= 0:
        del counter[address]


def room_for(connections: int) -> int:
    """So many connections, or fewer where this process may not have so many files open. Its limit is raised as far as
    it may be.
    """
    wanted = connections + RESERVE + FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - RESERVE - FILES))
