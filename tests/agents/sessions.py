"""A session for tests of prompts: what is asked, what an engine makes of it, and the turns so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from serve_apps.engines.engine import Tokens
from serve_apps.rollouts.agents.agent_request import AgentRequest, DialectName
from serve_apps.rollouts.agents.bridge import Bridge, Placement

Message = dict[str, Any]
TOOLS: tuple[Message, ...] = (
    {"type": "function", "function": {"name": "look_up", "description": "", "parameters": {"type": "object"}}},
)


@dataclass(frozen=True)
class Turn:
    index: int
    extends: int | None
    frame: str
    messages: tuple[str, ...]
    answered: str
    observed: Tokens
    generated: Tokens


@dataclass(frozen=True)
class Recorded:
    """See `attach.Forest`."""

    all: Sequence[Turn]

    def turns(self) -> Sequence[Turn]:
        return self.all

    def answered(self, digest: str) -> Turn | None:
        return next((turn for turn in reversed(self.all) if turn.answered == digest), None)


@dataclass
class Played:
    """bridge: of the model. turns: recorded so far."""

    bridge: Bridge
    turns: list[Turn] = field(default_factory=list)

    def ask(self, messages: Sequence[Message], tools: Sequence[Message] = (), **more: Any) -> Placement:
        request = AgentRequest(DialectName.CHAT, "m", tuple(messages), tools=tuple(tools), **more)
        return self.bridge.place(request, Recorded(self.turns))

    def ids(self, ids: Sequence[int]) -> Placement:
        return self.bridge.place(AgentRequest(DialectName.GENERATE, "m", tokens=tuple(ids)), Recorded(self.turns))

    def record(self, placed: Placement, generated: Sequence[int], answer: Message) -> Turn:
        generated_ids = np.array(generated, np.int32)
        index = len(self.turns)
        answered = placed.chain.answered(answer)
        self.turns.append(
            Turn(index, placed.extends, placed.chain.frame, placed.messages, answered, placed.observed, generated_ids)
        )
        return self.turns[-1]

    def path(self, index: int | None) -> list[int]:
        """Prompt and generated ids of a turn."""
        if index is None:
            return []
        turn = self.turns[index]
        return [*self.path(turn.extends), *turn.observed.tolist(), *turn.generated.tolist()]

    def prompt(self, placed: Placement) -> list[int]:
        return [*self.path(placed.extends), *placed.observed.tolist()]
