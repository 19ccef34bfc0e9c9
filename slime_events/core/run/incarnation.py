"""`Incarnation`: one life of a run, from run.started or run.resumed to its end or to the crash of everything."""

from __future__ import annotations

import msgspec


class Incarnation(msgspec.Struct, frozen=True, kw_only=True):
    """number: 0 for the first, n of `run.resumed` after that. since: position of the event that began it.

    requests_from: the first position at which a rollout.requested may still have work to be done. Each incarnation has
    a queue of its own, so that what engines of the one before hold comes at once instead of after their leases.
    """

    number: int = 0
    since: int = 0
    requests_from: int = 1

    @property
    def queue(self) -> str:
        """Name of the queue that the engines take requests from."""
        return queue_of(self.number)


def queue_of(number: int) -> str:
    """The queue of an incarnation by its number."""
    return f"engines-{number}" if number else "engines"
