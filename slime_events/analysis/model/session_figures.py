"""`OpenSession`, `EndedSessions`: what a run's progress has of the sessions of its agents."""

import msgspec

FAILURES = 3
"""Sessions that came to nothing and are named."""


class OpenSession(msgspec.Struct):
    """A session of an agent that is not sealed. turns: under way, by number, since when. Times: UTC nanoseconds."""

    session: str
    opened_at: int
    turns: dict[int, int] = {}


class FailedSession(msgspec.Struct, frozen=True):
    """A session of an agent that came to nothing."""

    session: str
    reason: str


class EndedSessions(msgspec.Struct):
    """Sessions of agents that have ended. sealed: how many, by reason. last: the one that was sealed last. failed: how
    many came to nothing; failures: the newest of them.
    """

    sealed: dict[str, int] = {}
    last: str = ""
    failed: int = 0
    failures: list[FailedSession] = []

    def fail(self, session: str, reason: str) -> None:
        """One more came to nothing."""
        self.failed += 1
        self.failures = [*self.failures[1 - FAILURES :], FailedSession(session, reason)]
