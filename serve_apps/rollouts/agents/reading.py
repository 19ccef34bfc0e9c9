"""Reads the requests of a session. The beginning that a request shares with an earlier one is not read again.

    body -> earlier body with the longest common beginning -> items after it -> AgentRequest

A client sends its whole conversation with each turn. Bytes that an earlier body had too are compared, and neither
decoded nor digested again: the cost of a turn depends on its new part only.
"""

import hashlib
import secrets
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from serve_apps.rollouts.agents.agent_request import AgentRequest, BadField, Dialect
from serve_apps.rollouts.agents.attach import KEPT
from serve_apps.rollouts.agents.canonical import Conversation
from serve_apps.rollouts.agents.dialects.fields import read_object
from serve_apps.rollouts.agents.off_loop import off_loop
from slime_events.core.sessions.agent_requests import common_prefix

KEPT_BYTES = 256 * 1024 * 1024
"""Bytes of bodies in memory. The least recently used sessions are dropped; their next request is read as a whole."""
_STATES = 16
"""Digest states kept for a body, at the ends of its last items."""
Read = Callable[[Mapping[str, Any], Conversation], AgentRequest]
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_lists = msgspec.json.Decoder(list[msgspec.Raw])
_MARK = secrets.randbits(62)
"""Secret number that replaces the items that were read before."""
_MARKED = b"%d" % _MARK


@dataclass(frozen=True, slots=True)
class _Seen:
    """A body that was read."""

    path: Annotated[str, doc("path of its URL")]
    body: bytes
    begins: Annotated[int, doc("offset of the first item in `body`")]
    ends: Annotated[list[int], doc("end offset of each item after which no message is incomplete")]
    counts: Annotated[list[int], doc("number of messages up to each of these offsets")]
    messages: Sequence[dict[str, Any]]
    digests: Annotated[dict[int, "hashlib._Hash"], doc("state of the digest at some of the last `ends`")]


@dataclass(slots=True)
class Requests:
    """Reads the requests of one session."""

    bodies: Annotated[OrderedDict[int, bytes], doc("bodies of the last turns, by index")] = field(
        default_factory=OrderedDict
    )
    _seen: dict[str, deque[_Seen]] = field(default_factory=dict)

    def read(self, dialect: Dialect, path: str, body: bytes, read: Read | None = None) -> tuple[AgentRequest, str]:
        """Return the request, and the sha256 of its path and body as hex. read: replaces `dialect.read`.

        Raises BadField.
        """
        return self._note(dialect, _reading(self._seen_of(dialect), dialect, path, body, read or dialect.read))

    async def read_off_loop(
        self, dialect: Dialect, path: str, body: bytes, read: Read | None = None
    ) -> tuple[AgentRequest, str]:
        """Read a request like `read`, but a large one in a thread."""
        seen = self._seen_of(dialect)
        work = partial(_reading, seen, dialect, path, body, read or dialect.read)
        return self._note(dialect, await off_loop(len(body), work))

    def _seen_of(self, dialect: Dialect) -> "tuple[_Seen, ...]":
        return tuple(self._seen.get(dialect.name, ()))

    def _note(self, dialect: Dialect, reading: "_Reading") -> tuple[AgentRequest, str]:
        seen = self._seen.setdefault(dialect.name, deque(maxlen=KEPT))
        kept = [earlier for earlier in seen if earlier is not reading.replaced]
        new = [] if reading.new is None else [reading.new]
        self._seen[dialect.name] = deque([*new, *kept][:KEPT], maxlen=KEPT)
        return reading.request, reading.digest

    def keep(self, turn: int, body: bytes) -> None:
        """Keep the body of a turn: later bodies are stored as differences to it."""
        self.bodies[turn] = body
        while len(self.bodies) > KEPT:
            self.bodies.popitem(last=False)

    @property
    def size(self) -> int:
        """Bytes of the bodies in memory."""
        bodies = [*self.bodies.values(), *(earlier.body for seen in self._seen.values() for earlier in seen)]
        return sum({id(body): len(body) for body in bodies}.values())


class AllRequests:
    """Holds the `Requests` of a gateway's sessions by name. most: bytes of all bodies in memory."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most, self._size = most, 0
        self._sessions: OrderedDict[str, tuple[Requests, int]] = OrderedDict()

    def of(self, session: str) -> Requests:
        """Return the requests of a session. Growth after this call counts from the session's next call on."""
        requests, counted = self._sessions.pop(session, (Requests(), 0))
        size = requests.size
        self._sessions[session] = (requests, size)
        self._size += size - counted
        while self._size > self._most and len(self._sessions) > 1:
            self._size -= self._sessions.popitem(last=False)[1][1]
        return requests

    def forget(self, session: str) -> None:
        """Drop a session that takes no more turns."""
        _, counted = self._sessions.pop(session, (None, 0))
        self._size -= counted


@dataclass(frozen=True, slots=True)
class _Reading:
    """Result of reading a body."""

    request: AgentRequest
    digest: Annotated[str, doc("sha256 of path and body, hex")]
    new: Annotated[_Seen | None, doc("body to keep for later requests")]
    replaced: Annotated[_Seen | None, doc("earlier body that `new` replaces")] = None


def _reading(seen: Sequence[_Seen], dialect: Dialect, path: str, body: bytes, read: Read) -> _Reading:
    """Read a body. Safe in a thread: it changes no shared object. Raises BadField."""
    before, items = _nearest(seen, body)
    if before is not None:
        try:
            if (result := _read_new_items(dialect, read, path, body, before, items)) is not None:
                agent_request, new = result
                replaced = before if items == len(before.ends) else None
                return _Reading(agent_request, _digest(new), new, replaced)
        except BadField:
            pass  # read the whole body below, so that the error names the right index
    conversation = dialect.conversation()
    agent_request = read(read_object(body), conversation)
    whole = _of_whole(dialect, path, body, conversation)
    return _Reading(agent_request, _digest(whole or _Seen(path, body, 0, [], [], (), {})), whole)


def _nearest(seen: Sequence[_Seen], body: bytes) -> tuple[_Seen | None, int]:
    """Return the earlier body with the longest common beginning, and the number of its items in there."""
    best, most, upto = None, 0, 0
    for earlier in seen:
        shared = common_prefix(earlier.body, body)
        items = bisect_right(earlier.ends, shared)
        if items and earlier.ends[items - 1] > upto:
            best, most, upto = earlier, items, earlier.ends[items - 1]
    return best, most


def _read_new_items(
    dialect: Dialect, read: Read, path: str, body: bytes, before: _Seen, items: int
) -> tuple[AgentRequest, _Seen] | None:
    """Read a body that shares the first `items` with an earlier body. None if the items are at different offsets."""
    end, count = before.ends[items - 1], before.counts[items - 1]
    short = body[: before.begins] + _MARKED + body[end:]
    decoded = read_object(short)
    values = decoded.get(dialect.items)
    if not isinstance(values, list) or not values or values[0] != _MARK:
        return None
    conversation = dialect.conversation(before.messages[:count])
    agent_request = read(decoded | {dialect.items: values[1:]}, conversation)
    moved = end - before.begins - len(_MARKED)
    new = [at + moved for at in _ends_of(short, before.begins, dialect.items)[1:]]
    ends, counts = _whole(new, conversation)
    seen = _Seen(
        path,
        body,
        before.begins,
        before.ends[:items] + ends,
        before.counts[:items] + counts,
        conversation.messages,
        {at: state for at, state in before.digests.items() if at <= end and path == before.path},
    )
    return agent_request, seen


def _of_whole(dialect: Dialect, path: str, body: bytes, conversation: Conversation) -> _Seen | None:
    """Return a body to keep; None if the place of its items is unknown."""
    if not conversation.counts:
        return None
    items = bytes(_objects.decode(body)[dialect.items])
    begins = body.find(items) + 1
    short = body[:begins] + _MARKED + b"]" + body[begins - 1 + len(items) :]
    try:
        if read_object(short).get(dialect.items) != [_MARK]:  # the first match of these bytes is another field
            return None
    except BadField:
        return None
    ends, counts = _whole(_ends_of(body, begins, dialect.items), conversation)
    return _Seen(path, body, begins, ends, counts, conversation.messages, {})


def _ends_of(body: bytes, begins: int, name: str) -> list[int]:
    """Return the end offset of each item of a list. Between two items are only a comma and white space."""
    ends = list[int]()
    for item in _lists.decode(_objects.decode(body)[name]):
        raw = bytes(item)
        begins = body.find(raw, begins) + len(raw)
        ends.append(begins)
    return ends


def _whole(ends: list[int], conversation: Conversation) -> tuple[list[int], list[int]]:
    """Return the offsets after which no message is incomplete, and the number of messages up to each."""
    whole = [(end, count) for end, count in zip(ends, conversation.counts, strict=True) if count is not None]
    return [end for end, _ in whole], [count for _, count in whole]


def _digest(seen: _Seen) -> str:
    """Return the digest of `body:`, path and body, continued from the last stored state."""
    done = max(seen.digests, default=0)
    state = seen.digests[done].copy() if done else hashlib.sha256(b"body:" + seen.path.encode())
    for end in [end for end in seen.ends[-_STATES:] if end > done]:
        state.update(memoryview(seen.body)[done:end])
        seen.digests[end], done = state.copy(), end
    for end in sorted(seen.digests)[:-_STATES]:
        del seen.digests[end]
    state.update(memoryview(seen.body)[done:])
    return str(state.hexdigest())
