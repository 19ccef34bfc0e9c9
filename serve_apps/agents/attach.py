"""Where a request of a session goes on: at the deepest recorded turn that is a beginning of it.

    request -> digests of its messages -> the turn whose messages and answer they begin with
            -> else its token ids      -> the turn whose prompt and tokens they begin with
            -> else a new root, and why

Turns of a session are a forest: a turn extends another or is a root. Pure.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import numpy as np

from schemas.text import valid_text
from schemas.turns import RootReason
from serve_apps.engine.engine import Tokens

Message = Mapping[str, Any]
KEPT = 4
"""Requests of a session by which the next is read: some agents of one session ask in turns."""
_canonical = msgspec.json.Encoder(order="sorted")


class PriorTurn(Protocol):
    """A recorded turn, as `turn.recorded` and its `agent` have it, the ids as arrays."""

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
    """The digests of a request. frame: of its leading system messages, its tools and the template's arguments. links:
    of its first message, of its first two, and so on; each is over the frame too, so equal links are equal chats.
    """

    frame: str
    links: tuple[str, ...]

    def answered(self, answer: Message) -> str:
        """The next link, with this answer."""
        return _link(self.links[-1] if self.links else self.frame, answer)


class Chains:
    """The chains of one session's requests. Most begin as one of the last did: what is linked stays so."""

    def __init__(self) -> None:
        self._last: deque[tuple[Sequence[Message], Chain]] = deque(maxlen=KEPT)

    def of(self, messages: Sequence[Message], tools: Sequence[Message] = (), template: Message | None = None) -> Chain:
        """template: `chat_template_kwargs`."""
        system = 0
        while system < len(messages) and messages[system]["role"] in {"system", "developer"}:
            system += 1
        frame = _digest(([identity(message) for message in messages[:system]], list(tools), dict(template or {})))
        alike = [(_alike(before, messages), chain) for before, chain in self._last if chain.frame == frame]
        shared, nearest = max(alike, key=lambda one: one[0], default=(0, Chain(frame, ())))
        links = [frame, *nearest.links[:shared]]
        for message in messages[shared:]:
            links.append(_link(links[-1], message))
        chain = Chain(frame, tuple(links[1:]))
        self._last.appendleft((messages, chain))
        return chain


def _alike(before: Sequence[Message], messages: Sequence[Message]) -> int:
    """How many messages they have in common from the first on."""
    if before == messages[: len(before)]:  # most are the same objects
        return len(before)
    pairs = enumerate(zip(before, messages, strict=False))
    return next((at for at, (a, b) in pairs if a is not b and a != b), min(len(before), len(messages)))


def identity(message: Message) -> tuple[Any, ...]:
    """What is the same message, however a client wrote it.

    Left out: ids of calls, which clients make anew; an assistant's reasoning, which most clients do not send back, and
    white space around what it said.
    """
    role, content = message["role"], content_of(message)
    if role == "assistant":
        content = content.strip() if isinstance(content, str) else content
        calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
        return role, content, [(call.get("name", ""), arguments_of(call)) for call in calls]
    if role == "tool":
        return role, content
    return "system" if role == "developer" else role, content, message.get("name") or ""


def content_of(message: Message) -> Any:
    """The text, also of a list of nothing but texts; a list with other parts as it is."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, dict) and "text" in part for part in content):
        return "".join(part["text"] for part in content)
    return content


def arguments_of(function: Message) -> Any:
    """A call's arguments as a JSON value; as they are where they are no JSON.

    Half of a character, which JSON can name (`"\\ud83d"`), becomes U+FFFD: neither a digest nor a token can be of it.
    """
    given = function.get("arguments", "")
    if not isinstance(given, str):
        return given
    try:
        found = json.loads(given)
        text = json.dumps(found, ensure_ascii=False)
        return found if (valid := valid_text(text)) == text else json.loads(valid)
    except (ValueError, RecursionError):
        return valid_text(given)


def by_messages(forest: Forest, chain: Chain) -> tuple[PriorTurn, int] | None:
    """The turn with the most messages that are, with its answer, a beginning of the request, the newest of equal ones;
    and how many messages these are.
    """
    for count in range(len(chain.links), 0, -1):
        if (turn := forest.answered(chain.links[count - 1])) is not None:
            return turn, count
    return None


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """How far ids go along recorded turns. turn: the last whose prompt and tokens they begin with, `length` of them;
    of equal ones the newest. nearest: the turn that has the first token that differs, or the last in common; drift: how
    many come before it.
    """

    turn: PriorTurn | None = None
    length: int = 0
    nearest: int | None = None
    drift: int = 0


def walk(turns: Iterable[PriorTurn], ids: Tokens) -> TokenMatch:
    """Each turn is compared once, with its own tokens alone."""
    children: dict[int | None, list[PriorTurn]] = {}
    for turn in turns:
        children.setdefault(turn.extends, []).append(turn)
    walked = TokenMatch()
    open_ = [(turn, 0) for turn in children.get(None, ())]
    while open_:
        turn, at = open_.pop()
        own = np.concatenate([turn.observed, turn.generated])
        end = at + _common(own, ids[at:])
        if walked.nearest is None or (end, turn.index) > (walked.drift, walked.nearest):
            walked = replace(walked, nearest=turn.index, drift=end)
        if end < at + len(own):
            continue
        if walked.turn is None or (end, turn.index) > (walked.length, walked.turn.index):
            walked = replace(walked, turn=turn, length=end)
        open_ += [(child, end) for child in children.get(turn.index, ())]
    return walked


def why_root(turns: Iterable[PriorTurn], chain: Chain) -> RootReason:
    """Why a request that goes on from no turn begins a root."""
    known = list(turns)
    same = [turn for turn in known if turn.frame == chain.frame]
    if not known:
        return RootReason.FIRST
    if not same:
        return RootReason.SUBAGENT
    if any(chain.links[-1:] == turn.messages[-1:] for turn in same):
        return RootReason.REPEAT
    asked, total = 0, dict[int | None, int]()  # messages, with the answer
    for turn in known:
        total[turn.index] = total.get(turn.extends, 0) + len(turn.messages) + 1
        asked = max(asked, total[turn.index] - 1 if turn.frame == chain.frame else 0)
    return RootReason.COMPACTION if len(chain.links) < asked else RootReason.REWRITE


def _common(one: Tokens, other: Tokens) -> int:
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


def _link(last: str, message: Message) -> str:
    return _digest((last, identity(message)))


def _digest(value: Any) -> str:
    try:
        encoded = _canonical.encode(value)
    except (ValueError, TypeError, OverflowError, RecursionError):  # half a character, a number above 64 bits, depth
        encoded = valid_text(repr(value)).encode()
    return hashlib.sha256(encoded).hexdigest()[:16]
