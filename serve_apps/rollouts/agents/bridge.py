"""Builds the prompt of a turn. Generated tokens stay as the engine made them; only new text is tokenized.

    prompt = prompt of the turn that it extends + that turn's generated ids + new ids

The new ids are the template's end of the answer, the tool results or next message, and the start of the next answer.
The first of these rules that applies finds them:

    renderer  the `renderers` library knows the model (`Renderers`)
    text      the rendered chat contains exactly the generated text: the new ids are those of the text after it
    suffix    the rendered chat continues the chat that ends with the answer: the new ids are those of the continuation

If no rule applies, the template renders an earlier answer differently, and the request begins a root. For `text` and
`suffix`, only the last messages of a long chat are rendered, so a turn's cost does not grow with the session.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from schemas.doc import doc
from schemas.turns import RootReason
from serve_apps.engines.engine import Tokens
from serve_apps.rollouts.agents.agent_request import AgentRequest
from serve_apps.rollouts.agents.attach import Chain, Chains, Forest, Message, PriorTurn, by_messages, walk, why_root
from serve_apps.rollouts.agents.rendering import ChatTokenizer, Renderers, Rendering
from slime_events.core.checkpoint.context import LONG_CONTEXT

WINDOW = 8
"""Messages before an answer that are rendered with it, beside the system messages and the user's last question."""
THINKING_ENDS = "</think>"
"""Mark by which templates find the end of the thinking in an answer's text."""
PROBE = "WHAT THE TEMPLATE PUTS BEHIND THIS"


class Rule(enum.StrEnum):
    """The rule that found a turn's new ids.

    renderer, text and suffix: the turn's messages extend those of an earlier turn. tokens: its ids extend the ids of an
    earlier turn. whole: the turn is a root.
    """

    RENDERER = "renderer"
    TEXT = "text"
    SUFFIX = "suffix"
    TOKENS = "tokens"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Placement:
    """Place of a request in the forest of turns."""

    extends: Annotated[int | None, doc("index of the turn that the request extends; None: the request is a root")]
    observed: Annotated[Tokens, doc("prompt ids after the tokens of turn `extends`; of a root, all prompt ids. int32")]
    chain: Chain
    messages: Annotated[tuple[str, ...], doc("links of the messages after turn `extends` and its answer")]
    rule: Rule
    root: Annotated[RootReason | None, doc("reason why the request is a root")] = None
    nearest: Annotated[int | None, doc("index of the turn that shares the most tokens with a root")] = None
    drift: Annotated[int | None, doc("tokens that a root shares with turn `nearest`")] = None


class Bridge:
    """Builds the prompts of one model. template: the run's chat template arguments. longest: prompt limit in tokens."""

    def __init__(
        self, tokenizer: ChatTokenizer, template: Mapping[str, Any] | None = None, longest: int = LONG_CONTEXT
    ) -> None:
        self._rendering = Rendering(tokenizer, template, longest)
        self._renderers = Renderers(self._rendering)

    def ids(self, text: str) -> Tokens:
        """Return the ids of a prompt text. Raises BadField if the text is far too long."""
        return self._rendering.ids(text, "text")

    def place(self, request: AgentRequest, forest: Forest, chains: Chains | None = None) -> Placement:
        """Find the turn that a request extends, and its new ids. forest, chains: of the session.

        Raises BadField if the chat template refuses the messages.
        """
        chains = chains or Chains()
        if request.tokens is not None:
            ids = np.array(request.tokens, np.int32)
            return _by_tokens(ids, forest, chains.of([{"role": "ids", "content": ids.tobytes().hex()}]))
        chain = chains.of(request.messages, request.tools, self._rendering.arguments(request.template))
        match = by_messages(forest, chain)
        if match is not None and (new := self._new_ids(request, *match)) is not None:
            turn, covered = match
            return Placement(turn.index, new[0], chain, chain.links[covered:], new[1])
        ids = self._rendering.ids(self._rendering.text(request.messages, request.tools, request.template))
        return _by_tokens(ids, forest, chain, drifts=match is not None)

    def _new_ids(self, request: AgentRequest, turn: PriorTurn, covered: int) -> tuple[Tokens, Rule] | None:
        """Return the ids after a turn's tokens. covered: messages of the turn and its answer. None: no rule applies."""
        at = covered - 1
        ids = self._renderers.new_ids(request, at, turn)
        if ids is not None:
            return ids, Rule.RENDERER
        before, answer, new = request.messages[:at], request.messages[at], request.messages[at + 1 :]
        shown = last_of(before)
        long = self._rendering.text([*shown, answer, *new], request.tools, request.template)
        start = self._rendering.text(shown, request.tools, request.template)
        generated = self._rendering.decode(turn.generated)
        if long.startswith(start + generated):
            return self._rendering.ids(long[len(start) + len(generated) :]), Rule.TEXT
        short = self._rendering.text([*shown, answer], request.tools, request.template, asks=False)
        if not long.startswith(short):
            return None
        probe = [*shown, {"role": "assistant", "content": PROBE}]
        end = self._rendering.text(probe, request.tools, request.template, asks=False).rpartition(PROBE)[2]
        end = end if short.endswith(end) else ""
        new_ids = self._rendering.ids(end + long[len(short) :])
        ended = self._rendering.ends(turn.generated, new_ids, closes=bool(end))
        return new_ids[int(ended) :], Rule.SUFFIX


def last_of(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of a long chat that are rendered.

    They are the system messages, the user's last question, the last answer with thinking after it with the results of
    its calls (templates hide thinking before the last question), and the last few messages. The last few never begin
    with a tool result, whose call would be missing.
    """
    head = 0
    while head < len(messages) and messages[head]["role"] in {"system", "developer"}:
        head += 1
    tail = len(messages) - WINDOW
    while tail > head and messages[tail]["role"] == "tool":
        tail -= 1
    if tail <= head:
        return messages
    question = next((at for at in range(tail - 1, head, -1) if messages[at]["role"] == "user"), head)
    thought = next((at for at in range(tail - 1, question, -1) if _has_thought(messages[at])), tail)
    until = min(thought + 1, tail)
    while until < tail and messages[until]["role"] == "tool":
        until += 1
    if messages[tail]["role"] == "user":  # the last few begin with the question
        return [*messages[:head], *messages[tail:]]
    questions = [messages[question]] if messages[question]["role"] == "user" else []
    return [*messages[:head], *questions, *messages[thought:until], *messages[tail:]]


def _has_thought(message: Message) -> bool:
    content = message.get("content")
    thinks = message.get("reasoning_content") or (isinstance(content, str) and THINKING_ENDS in content)
    return message["role"] == "assistant" and bool(thinks)


def _by_tokens(ids: Tokens, forest: Forest, chain: Chain, *, drifts: bool = False) -> Placement:
    turns = forest.turns()
    match = walk(turns, ids)
    if match.turn is not None:
        return Placement(match.turn.index, ids[match.length :], chain, chain.links, Rule.TOKENS)
    root = RootReason.DRIFT if drifts else why_root(turns, chain)
    drift = match.drift if turns else None
    return Placement(None, ids, chain, chain.links, Rule.WHOLE, root, match.nearest, drift)
