"""`Connections`: the connections of one server, with deadlines and a limit on their number.

A connection waits for its client (for a head, or for the rest of a body after the answer), or the server answers its
request. A waiting connection has a deadline, and is closed if there are too many. The time of an answer is not limited.
"""

import asyncio
import contextlib
import resource
import time
from collections import Counter
from typing import Protocol

LOOK_S = 0.5
"""Seconds between two checks of all deadlines."""
RESERVE = 64
"""Connections beyond both limits, for `/healthz` and for answers that say that there are too many requests."""
FILES = 256
"""File descriptors that the rest of the process needs."""


class Connection(Protocol):
    """A connection that `Connections` can close."""

    address: str

    def look(self, now: float) -> None:
        """Close the connection if its client is late. now: seconds of a monotonic clock."""

    def drop(self) -> None:
        """Close the connection at once."""


class Connections:
    """Counts and limits connections.

    most: limit of requests in progress, and with RESERVE of connections. share: part of it that one address may have,
    from 0 to 1; agents on one machine need many connections.
    """

    def __init__(self, most: int, share: float) -> None:
        self.most, self.per_address = most, max(1, int(most * share))
        self._waiting: dict[Connection, None] = {}  # longest waiting first
        self._busy: dict[Connection, None] = {}
        self._of_address, self._busy_of_address = Counter[str](), Counter[str]()
        self._looking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._busy)

    def add(self, connection: Connection) -> None:
        """Add a waiting connection. If there are too many, close the longest waiting one, possibly this connection."""
        self._waiting[connection] = None
        self._of_address[connection.address] += 1
        if self._of_address[connection.address] > self.per_address + RESERVE:
            self._make_room(connection.address)
        if len(self) > self.most + RESERVE:
            self._make_room(None)
        if self._looking is None:
            self._look_later()

    def begin(self, connection: Connection) -> None:
        """Mark a connection: the server begins to answer its request."""
        if connection in self._waiting:
            del self._waiting[connection]
            self._busy[connection] = None
            self._busy_of_address[connection.address] += 1

    def end(self, connection: Connection) -> None:
        """Mark a connection: its request is answered, and it waits for the next one."""
        if connection in self._busy:
            del self._busy[connection]
            _less(self._busy_of_address, connection.address)
            self._waiting[connection] = None

    def remove(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self.end(connection)
        if connection in self._waiting:
            del self._waiting[connection]
            _less(self._of_address, connection.address)

    def is_full(self, connection: Connection) -> bool:
        """Return whether the server is too busy for another request of this connection."""
        return len(self._busy) >= self.most or self._busy_of_address[connection.address] >= self.per_address

    def _make_room(self, address: str | None) -> None:
        """Close the connection that has waited longest. address: only a connection of this address."""
        waiting = (connection for connection in self._waiting if address is None or connection.address == address)
        if (connection := next(waiting, None)) is not None:
            self.remove(connection)
            connection.drop()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        for connection in (*self._waiting, *self._busy):
            connection.look(now)
        self._looking = None
        if len(self):
            self._look_later()


def _less(counter: Counter[str], address: str) -> None:
    counter[address] -= 1
    if counter[address] <= 0:
        del counter[address]


def room_for(connections: int) -> int:
    """Raise the process's limit of open files, and return how many of the connections it allows."""
    files = connections + RESERVE + FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - RESERVE - FILES))
