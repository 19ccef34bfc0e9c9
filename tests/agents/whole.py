"""`read_whole`: a request of which nothing was read before."""

from __future__ import annotations

from serve_apps.rollouts.agents.agent_request import AgentRequest, Dialect
from serve_apps.rollouts.agents.dialects.fields import read_object
from serve_apps.rollouts.agents.reading import Read


def read_whole(dialect: Dialect, body: bytes, read: Read | None = None) -> AgentRequest:
    """read: instead of the dialect's. Raises BadField."""
    return (read or dialect.read)(read_object(body), dialect.conversation())
