"""Sessions of agents as harnesses see them over HTTP: one that was opened, and the list of those that are open."""

from typing import Any

import msgspec


class OpenedSession(msgspec.Struct, frozen=True):
    """A rollout to make. prompt: its text, or its chat messages; metadata, label, tools: as the prompt has them.
    sampling: how its tokens are drawn, by SGLang's names. base_url: for an agent, with its key in it; agent_key: the
    same as an API key. control_key: for the harness alone. purpose: `train` or `eval`. limits: seconds.
    """

    session: str
    sample: str
    group: str
    attempt: int
    purpose: str
    prompt: Any
    metadata: Any
    label: Any
    tools: Any
    sampling: dict[str, Any]
    base_url: str
    agent_key: str
    control_key: str
    limits: dict[str, float]


class ListedSession(msgspec.Struct, frozen=True):
    """A session that was opened and is not sealed. key: the Idempotency-Key that opens it again. opened_at: seconds of
    Unix time. idle_s: since the newest event of it. turns: that have ended; under_way: that have not.
    """

    session: str
    sample: str
    group: str
    attempt: int
    key: str
    control_key: str
    opened_at: float
    idle_s: float
    turns: int
    under_way: int


class SessionList(msgspec.Struct, frozen=True):
    """Open sessions of one source, by name. next: to be given as `after` for those that follow; empty: there are none.
    over: the run has ended; interrupted: by its user, who may resume it.
    """

    sessions: list[ListedSession]
    next: str = ""
    over: bool = False
    interrupted: bool = False
