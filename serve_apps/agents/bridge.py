"""The prompt of a turn: what the engine has made stays as it is, only what is new is made into tokens.

    prompt = prompt of the turn that it extends + that turn's generated ids + ids of what is new

What is new: how the template ends the answer, tool results or the next message, and what opens the next answer. It is
told by the first of these that can:

    renderer  the `renderers` library, where it knows the model (`known_models.py`)
    text      the rendered chat goes on with the very text that was generated
    suffix    the rendered chat goes on with the answer as the template writes it: what is behind the answer

Else the template shows the answer otherwise once it is history: the request begins a root. For `text` and `suffix` a
long chat is rendered from its last messages, so that a turn's cost does not grow with the session.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.turns import RootReason
from serve_apps.agents.asked import AgentRequest
from serve_apps.agents.attach import Chain, Chains, Forest, Message, PriorTurn, by_messages, walk, why_root
from serve_apps.agents.known_models import Renderers
from serve_apps.agents.rendering import Rendering
from serve_apps.engine.engine import Tokens
from slime_events.core.context import LONG_CONTEXT

WINDOW = 8
"""Messages before an answer that are rendered with it, beside the system's and the last of a user."""
THINKING_ENDS = "</think>"
"""By this templates find an answer's thinking in its text."""
PROBE = "WHAT THE TEMPLATE PUTS BEHIND THIS"


class Rule(enum.StrEnum):
    """What told a turn's new ids. The first three: its messages begin with those of the turn that it extends and with
    the answer. tokens: its ids begin with that turn's. whole: it is a root.
    """

    RENDERER = "renderer"
    TEXT = "text"
    SUFFIX = "suffix"
    TOKENS = "tokens"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request stands. observed: the ids that are new after the tokens of turn `extends`; of a root all.
    messages: digests of those of its messages that are not of that turn, nor its answer. root, nearest, drift: as
    `AgentTurn` has them.
    """

    extends: int | None
    observed: Tokens
    chain: Chain
    messages: tuple[str, ...]
    rule: Rule
    root: RootReason | None = None
    nearest: int | None = None
    drift: int | None = None


class Bridge:
    """Of one model. template: the run's arguments of the chat template. longest: tokens of a prompt."""

    def __init__(self, tokenizer: Any, template: Mapping[str, Any] | None = None, longest: int = LONG_CONTEXT) -> None:
        self._rendering = Rendering(tokenizer, template, longest)
        self._renderers = Renderers(self._rendering)

    def ids(self, text: str) -> Tokens:
        """Of a prompt that is a text. Raises BadField where it is far too long."""
        return self._rendering.ids(text, "text")

    def place(self, asked: AgentRequest, forest: Forest, chains: Chains | None = None) -> Placement:
        """forest: of the session. chains: of its requests. Raises BadField where the chat template refuses the
        messages.
        """
        chains = chains or Chains()
        if asked.tokens is not None:
            ids = np.array(asked.tokens, np.int32)
            return _by_tokens(ids, forest, chains.of([{"role": "ids", "content": ids.tobytes().hex()}]))
        chain = chains.of(asked.messages, asked.tools, self._rendering.arguments(asked.template))
        found = by_messages(forest, chain)
        if found is not None and (new := self._new_ids(asked, *found)) is not None:
            return Placement(found[0].index, new[0], chain, chain.links[found[1] :], new[1])
        ids = self._rendering.ids(self._rendering.text(asked.messages, asked.tools, asked.template))
        return _by_tokens(ids, forest, chain, drifts=found is not None)

    def _new_ids(self, asked: AgentRequest, turn: PriorTurn, covered: int) -> tuple[Tokens, Rule] | None:
        at = covered - 1
        ids = self._renderers.new_ids(asked, at, turn)
        if ids is not None:
            return ids, Rule.RENDERER
        before, answer, new = asked.messages[:at], asked.messages[at], asked.messages[at + 1 :]
        shown = last_of(before)
        long = self._rendering.text([*shown, answer, *new], asked.tools, asked.template)
        start = self._rendering.text(shown, asked.tools, asked.template)
        said = self._rendering.decode(turn.generated)
        if long.startswith(start + said):
            return self._rendering.ids(long[len(start) + len(said) :]), Rule.TEXT
        short = self._rendering.text([*shown, answer], asked.tools, asked.template, asks=False)
        if not long.startswith(short):
            return None
        probe = [*shown, {"role": "assistant", "content": PROBE}]
        end = self._rendering.text(probe, asked.tools, asked.template, asks=False).rpartition(PROBE)[2]
        end = end if short.endswith(end) else ""
        new_ids = self._rendering.ids(end + long[len(short) :])
        ended = self._rendering.ends(turn.generated, new_ids, closes=bool(end))
        return new_ids[int(ended) :], Rule.SUFFIX


def last_of(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages that are rendered in the place of a long chat: the system's, the last of a user, the last answer
    that has thought since (templates hide that once there is another question) with its calls' results, the last few.
    They do not begin with a tool's result, whose call would be missing.
    """
    head = 0
    while head < len(messages) and messages[head]["role"] in {"system", "developer"}:
        head += 1
    tail = len(messages) - WINDOW
    while tail > head and messages[tail]["role"] == "tool":
        tail -= 1
    if tail <= head:
        return messages
    asked = next((place for place in range(tail - 1, head, -1) if messages[place]["role"] == "user"), head)
    thought = next((place for place in range(tail - 1, asked, -1) if _has_thought(messages[place])), tail)
    until = min(thought + 1, tail)
    while until < tail and messages[until]["role"] == "tool":
        until += 1
    if messages[tail]["role"] == "user":  # it is the last question before these few
        return [*messages[:head], *messages[tail:]]
    questions = [messages[asked]] if messages[asked]["role"] == "user" else []
    return [*messages[:head], *questions, *messages[thought:until], *messages[tail:]]


def _has_thought(message: Message) -> bool:
    content = message.get("content")
    thinks = message.get("reasoning_content") or (isinstance(content, str) and THINKING_ENDS in content)
    return message["role"] == "assistant" and bool(thinks)


def _by_tokens(ids: Tokens, forest: Forest, chain: Chain, *, drifts: bool = False) -> Placement:
    known = forest.turns()
    walked = walk(known, ids)
    if walked.turn is not None:
        return Placement(walked.turn.index, ids[walked.length :], chain, chain.links, Rule.TOKENS)
    root = RootReason.DRIFT if drifts else why_root(known, chain)
    drift = walked.drift if known else None
    return Placement(None, ids, chain, chain.links, Rule.WHOLE, root, walked.nearest, drift)
