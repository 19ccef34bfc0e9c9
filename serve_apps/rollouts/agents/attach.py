"""Finds the turn that a request extends: the deepest recorded turn that is a prefix of the request.

    request -> digests of its messages -> the turn whose messages and answer are a prefix of them
            -> else its token ids      -> the turn whose prompt and generated tokens are a prefix of them
            -> else a new root, with the reason

The turns of a session are a forest: each turn extends another one or is a root. Functions here have no side effects.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np

from schemas.doc import doc
from schemas.text import valid_text
from schemas.turns import RootReason
from serve_apps.engines.engine import Tokens

Message = Mapping[str, Any]
KEPT = 4
"""Recent requests of a session that speed up reading the next one. Several agents may take turns in one session."""
_canonical = msgspec.json.Encoder(order="sorted")


class PriorTurn(Protocol):
    """A recorded turn: fields of `turn.recorded` and its `agent`, with token ids as int32 arrays [tokens]."""

    @property
    def index(self) -> int: ...
    @property
    def extends(self) -> int | None: ...
    @property
    def frame(self) -> str: ...
    @property
    def messages(self) -> tuple[str, ...]: ...
    @property
    def answered(self) -> str: ...
    @property
    def observed(self) -> Tokens: ...
    @property
    def generated(self) -> Tokens: ...


class Forest(Protocol):
    """The recorded turns of a session."""

    def turns(self) -> Sequence[PriorTurn]:
        """Oldest first."""

    def answered(self, digest: str) -> PriorTurn | None:
        """The newest turn whose messages and answer have this digest."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Digests of a request's messages. Each link covers the frame too, so equal links mean equal chats."""

    frame: Annotated[str, doc("digest of the leading system messages, the tools and the template's arguments")]
    links: Annotated[tuple[str, ...], doc("digest of the first message, of the first two, and so on")]

    def answered(self, answer: Message) -> str:
        """Return the next link, which covers this answer too."""
        return _link(self.links[-1] if self.links else self.frame, answer)


class Chains:
    """Computes the chains of one session's requests. A request reuses the links that it shares with a recent one."""

    def __init__(self) -> None:
        self._last: deque[tuple[Sequence[Message], Chain]] = deque(maxlen=KEPT)

    def of(self, messages: Sequence[Message], tools: Sequence[Message] = (), template: Message | None = None) -> Chain:
        """Return the chain of a request. template: `chat_template_kwargs`."""
        system = 0
        while system < len(messages) and messages[system]["role"] in {"system", "developer"}:
            system += 1
        frame = _digest(([identity(message) for message in messages[:system]], list(tools), dict(template or {})))
        alike = [(_alike(before, messages), chain) for before, chain in self._last if chain.frame == frame]
        shared, nearest = max(alike, key=lambda pair: pair[0], default=(0, Chain(frame, ())))
        links = [frame, *nearest.links[:shared]]
        for message in messages[shared:]:
            links.append(_link(links[-1], message))
        chain = Chain(frame, tuple(links[1:]))
        self._last.appendleft((messages, chain))
        return chain


def _alike(before: Sequence[Message], messages: Sequence[Message]) -> int:
    """Return the length of the common prefix, in messages."""
    if before == messages[: len(before)]:  # fast: most messages are the same objects
        return len(before)
    pairs = enumerate(zip(before, messages, strict=False))
    return next((at for at, (a, b) in pairs if a is not b and a != b), min(len(before), len(messages)))


def identity(message: Message) -> tuple[object, ...]:
    """Return a comparison key that is equal for two spellings of one message.

    The key leaves out ids of calls, which some clients replace, and from an assistant's message the reasoning, which
    most clients do not send back, and white space around the content.
    """
    role, content = message["role"], content_of(message)
    if role == "assistant":
        content = content.strip() if isinstance(content, str) else content
        calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
        return role, content, [(call.get("name", ""), arguments_of(call)) for call in calls]
    if role == "tool":
        return role, content
    return "system" if role == "developer" else role, content, message.get("name") or ""


def content_of(message: Message) -> object:
    """Return the content. A list of text parts becomes a single text; a list with other parts stays a list."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, dict) and "text" in part for part in content):
        return "".join(part["text"] for part in content)
    return content


def arguments_of(function: Message) -> object:
    """Return the arguments of a tool call as a JSON value, or as text if they are not JSON.

    A lone surrogate, which JSON can express (`"\\ud83d"`), becomes U+FFFD: it has neither a digest nor a token.
    """
    arguments: object = function.get("arguments", "")
    if not isinstance(arguments, str):
        return arguments
    try:
        value: object = json.loads(arguments)
        text = json.dumps(value, ensure_ascii=False)
        return value if (valid := valid_text(text)) == text else json.loads(valid)
    except (ValueError, RecursionError):
        return valid_text(arguments)


def by_messages(forest: Forest, chain: Chain) -> tuple[PriorTurn, int] | None:
    """Return the turn whose messages and answer are the longest prefix of the request, and the length of this prefix.

    If several turns have the same messages, return the newest.
    """
    for count in range(len(chain.links), 0, -1):
        if (turn := forest.answered(chain.links[count - 1])) is not None:
            return turn, count
    return None


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """Longest match of token ids with recorded turns."""

    turn: Annotated[
        PriorTurn | None, doc("deepest turn whose prompt and tokens are a prefix of the ids; the newest of equal turns")
    ] = None
    length: Annotated[int, doc("tokens of that prefix")] = 0
    nearest: Annotated[int | None, doc("index of the turn that shares the most tokens with the ids")] = None
    drift: Annotated[int, doc("tokens that the ids share with turn `nearest`, its prompt included")] = 0


def walk(turns: Iterable[PriorTurn], ids: Tokens) -> TokenMatch:
    """Match token ids with the forest of turns. Each turn's own tokens are compared once."""
    children: dict[int | None, list[PriorTurn]] = {}
    for turn in turns:
        children.setdefault(turn.extends, []).append(turn)
    match = TokenMatch()
    open_ = [(turn, 0) for turn in children.get(None, ())]
    while open_:
        turn, at = open_.pop()
        own = np.concatenate([turn.observed, turn.generated])
        end = at + _common(own, ids[at:])
        if match.nearest is None or (end, turn.index) > (match.drift, match.nearest):
            match = replace(match, nearest=turn.index, drift=end)
        if end < at + len(own):
            continue
        if match.turn is None or (end, turn.index) > (match.length, match.turn.index):
            match = replace(match, turn=turn, length=end)
        open_ += [(child, end) for child in children.get(turn.index, ())]
    return match


def why_root(turns: Iterable[PriorTurn], chain: Chain) -> RootReason:
    """Return the reason why a request that extends no turn begins a root."""
    recorded = list(turns)
    same = [turn for turn in recorded if turn.frame == chain.frame]
    if not recorded:
        return RootReason.FIRST
    if not same:
        return RootReason.SUBAGENT
    if any(chain.links[-1:] == turn.messages[-1:] for turn in same):
        return RootReason.REPEAT
    longest, total = 0, dict[int | None, int]()  # messages of a turn's path, `total` with its answer
    for turn in recorded:
        total[turn.index] = total.get(turn.extends, 0) + len(turn.messages) + 1
        longest = max(longest, total[turn.index] - 1 if turn.frame == chain.frame else 0)
    return RootReason.COMPACTION if len(chain.links) < longest else RootReason.REWRITE


def _common(first: Tokens, second: Tokens) -> int:
    """Return the length of the common prefix."""
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def _link(last: str, message: Message) -> str:
    return _digest((last, identity(message)))


def _digest(value: object) -> str:
    try:
        encoded = _canonical.encode(value)
    except (
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
    ):  # lone surrogate, integer above 64 bits, depth
        encoded = valid_text(repr(value)).encode()
    return hashlib.sha256(encoded).hexdigest()[:16]
