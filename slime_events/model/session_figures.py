"""`OpenSession`, `EndedSessions`: figures of agents' sessions in a run's progress."""

from typing import Annotated

import msgspec

from schemas.doc import doc

FAILURES = 3
"""Number of failed sessions that are listed."""


class OpenSession(msgspec.Struct):
    """An agent's session that is not sealed."""

    session: Annotated[str, doc("name, `<sample>.<attempt>`")]
    opened_at: Annotated[int, doc("UTC [ns]")]
    turns: Annotated[dict[int, int], doc("turns under way: UTC of their beginning [ns] by index")] = {}


class FailedSession(msgspec.Struct, frozen=True):
    """An agent's session that gave no samples."""

    session: Annotated[str, doc("name, `<sample>.<attempt>`")]
    reason: Annotated[str, doc("one sentence")]


class EndedSessions(msgspec.Struct):
    """Agents' sessions that have ended."""

    sealed: Annotated[dict[str, int], doc("number of sessions by reason of their seal")] = {}
    last: Annotated[str, doc("name of the last sealed session")] = ""
    failed: Annotated[int, doc("number of sessions that gave no samples")] = 0
    failures: Annotated[list[FailedSession], doc("the newest of those")] = []

    def fail(self, session: str, reason: str) -> None:
        """Count a session that gave no samples."""
        self.failed += 1
        self.failures = [*self.failures[1 - FAILURES :], FailedSession(session, reason)]
