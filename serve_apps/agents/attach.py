"""Where a request of a session goes on: at the deepest recorded turn that is a beginning of it.

    request -> digests of its messages -> the turn whose messages and answer they begin with
            -> else its token ids      -> the turn whose prompt and tokens they begin with
            -> else a new root, and why

Turns of a session are a forest: a turn extends another or is a root. Pure.
"""

import enum
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from serve_apps.engine.engine import Tokens

Message = Mapping[str, Any]


class Place(enum.StrEnum):
    """What decided where a turn stands. The first two: it extends a turn; the others: why it begins a root.

    first: the session had no turn. repeat: what a root asked, again. compaction: fewer messages than a turn of the same
    system message and tools was asked with. rewrite: others. subagent: another system message, other tools or another
    rendering. drift: the messages go on, but the template shows the earlier ones otherwise now.
    """

    MESSAGES = "messages"
    TOKENS = "tokens"
    FIRST = "first"
    REPEAT = "repeat"
    COMPACTION = "compaction"
    REWRITE = "rewrite"
    SUBAGENT = "subagent"
    DRIFT = "drift"


class Known(Protocol):
    """A recorded turn. messages: digests of those messages of its request that turn `extends` and its answer do not
    cover; answered: with its answer. Its prompt: that of `extends` with its tokens, then `observed`.
    """

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


def chain_of(messages: Sequence[Message], tools: Sequence[Message] = (), template: Message | None = None) -> Chain:
    """template: `chat_template_kwargs`."""
    system = 0
    while system < len(messages) and messages[system]["role"] in {"system", "developer"}:
        system += 1
    frame = _digest(([identity(message) for message in messages[:system]], list(tools), dict(template or {})))
    links = [frame]
    for message in messages:
        links.append(_link(links[-1], message))
    return Chain(frame, tuple(links[1:]))


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
    """A call's arguments as a JSON value; as they are where they are no JSON."""
    given = function.get("arguments", "")
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given


def by_messages(turns: Iterable[Known], chain: Chain) -> tuple[Known, int] | None:
    """The turn with the most messages that are, with its answer, a beginning of the request, the newest of equal ones;
    and how many messages these are.
    """
    answered = {turn.answered: turn for turn in turns}
    for count in range(len(chain.links), 0, -1):
        if (turn := answered.get(chain.links[count - 1])) is not None:
            return turn, count
    return None


def by_tokens(turns: Iterable[Known], ids: Tokens) -> tuple[Known | None, int, int]:
    """(the turn with the longest prompt and tokens that the ids begin with, how many these are, how many of the ids any
    path begins with). Each turn is compared once, with its own tokens alone.
    """
    children: dict[int | None, list[Known]] = {}
    for turn in turns:
        children.setdefault(turn.extends, []).append(turn)
    found, length, common = None, 0, 0
    open_ = [(turn, 0) for turn in children.get(None, ())]
    while open_:
        turn, at = open_.pop()
        own = np.concatenate([turn.observed, turn.generated])
        equal = _common(own, ids[at:])
        common = max(common, at + equal)
        if equal < len(own):
            continue
        at += equal
        if found is None or (at, turn.index) > (length, found.index):
            found, length = turn, at
        open_ += [(child, at) for child in children.get(turn.index, ())]
    return found, length, common


def why_root(turns: Iterable[Known], chain: Chain) -> Place:
    """Why a request that goes on from no turn begins a root."""
    known = list(turns)
    same = [turn for turn in known if turn.frame == chain.frame]
    if not known:
        return Place.FIRST
    if not same:
        return Place.SUBAGENT
    if any(chain.links[-1:] == turn.messages[-1:] for turn in same):
        return Place.REPEAT
    asked, total = 0, dict[int | None, int]()  # messages, with the answer
    for turn in known:
        total[turn.index] = total.get(turn.extends, 0) + len(turn.messages) + 1
        asked = max(asked, total[turn.index] - 1 if turn.frame == chain.frame else 0)
    return Place.COMPACTION if len(chain.links) < asked else Place.REWRITE


def _common(one: Tokens, other: Tokens) -> int:
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


def _link(last: str, message: Message) -> str:
    return _digest((last, identity(message)))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
