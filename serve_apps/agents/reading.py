"""Requests of a session, each of which begins as one before it: what was read is not read again.

    body -> the last body that it begins like -> the items behind what they have in common -> Asked

A client sends its whole conversation with each turn. The bytes that it shares with a body that was read are compared,
and neither decoded nor digested again: a turn costs what is new in it.
"""

import hashlib
import secrets
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from serve_apps.agents.asked import AgentRequest, BadField, Dialect
from serve_apps.agents.attach import KEPT
from serve_apps.agents.canonical import Conversation
from serve_apps.agents.dialects.fields import read_object
from serve_apps.agents.off_loop import off_loop
from slime_events.core.agent_requests import common_prefix

KEPT_BYTES = 256 * 1024 * 1024
"""Of bodies in memory; a session that asked for nothing the longest is read whole again."""
_STATES = 16
"""Places at the end of a body from which its digest goes on."""
Read = Callable[[Mapping[str, Any], Conversation], AgentRequest]
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_lists = msgspec.json.Decoder(list[msgspec.Raw])
_MARK = secrets.randbits(62)
"""In the place of the items that are known: no client knows it."""
_MARKED = b"%d" % _MARK


@dataclass(frozen=True, slots=True)
class _Seen:
    """A body that was read. path: of its URL. begins: where its items do. ends: where each item ends that later ones do
    not change, and counts: the messages up to there. digests: of all bytes up to some of the last ends.
    """

    path: str
    body: bytes
    begins: int
    ends: list[int]
    counts: list[int]
    messages: Sequence[dict[str, Any]]
    digests: dict[int, Any]


@dataclass(slots=True)
class Requests:
    """Of one session. bodies: of its last turns, by turn."""

    bodies: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    _seen: dict[str, deque[_Seen]] = field(default_factory=dict)

    def read(self, dialect: Dialect, path: str, body: bytes, read: Read | None = None) -> tuple[AgentRequest, str]:
        """The request, and the sha256 of its path and body, hex. read: in the place of the dialect's. Raises
        BadField.
        """
        return self._note(dialect, _reading(self._seen_of(dialect), dialect, path, body, read or dialect.read))

    async def read_off_loop(
        self, dialect: Dialect, path: str, body: bytes, read: Read | None = None
    ) -> tuple[AgentRequest, str]:
        """The same, of a large body in a thread."""
        seen = self._seen_of(dialect)
        work = partial(_reading, seen, dialect, path, body, read or dialect.read)
        return self._note(dialect, await off_loop(len(body), work))

    def _seen_of(self, dialect: Dialect) -> "tuple[_Seen, ...]":
        return tuple(self._seen.get(dialect.name, ()))

    def _note(self, dialect: Dialect, reading: "_Reading") -> tuple[AgentRequest, str]:
        seen = self._seen.setdefault(dialect.name, deque(maxlen=KEPT))
        kept = [one for one in seen if one is not reading.replaced]
        new = [] if reading.new is None else [reading.new]
        self._seen[dialect.name] = deque([*new, *kept][:KEPT], maxlen=KEPT)
        return reading.asked, reading.digest

    def keep(self, turn: int, body: bytes) -> None:
        """The body of a turn, for what its next turns have in common with it."""
        self.bodies[turn] = body
        while len(self.bodies) > KEPT:
            self.bodies.popitem(last=False)

    @property
    def size(self) -> int:
        """Bytes."""
        bodies = [*self.bodies.values(), *(one.body for seen in self._seen.values() for one in seen)]
        return sum({id(body): len(body) for body in bodies}.values())


class AllRequests:
    """Of the sessions of a gateway, by name. most: bytes of them together."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most, self._size = most, 0
        self._sessions: OrderedDict[str, tuple[Requests, int]] = OrderedDict()

    def of(self, session: str) -> Requests:
        """Of one session. What it holds is counted when it is asked for the next time."""
        requests, counted = self._sessions.pop(session, (Requests(), 0))
        size = requests.size
        self._sessions[session] = (requests, size)
        self._size += size - counted
        while self._size > self._most and len(self._sessions) > 1:
            self._size -= self._sessions.popitem(last=False)[1][1]
        return requests

    def forget(self, session: str) -> None:
        """It takes no more turns."""
        _, counted = self._sessions.pop(session, (None, 0))
        self._size -= counted


@dataclass(frozen=True, slots=True)
class _Reading:
    """A body that was read now. new: what is kept of it; replaced: the one in whose place."""

    asked: AgentRequest
    digest: str
    new: _Seen | None
    replaced: _Seen | None = None


def _reading(seen: Sequence[_Seen], dialect: Dialect, path: str, body: bytes, read: Read) -> _Reading:
    """Changes nothing that others see. Raises BadField."""
    before, items = _nearest(seen, body)
    if before is not None:
        try:
            if (found := _read_on(dialect, read, path, body, before, items)) is not None:
                replaced = before if items == len(before.ends) else None
                return _Reading(found[0], _digest(found[1]), found[1], replaced)
        except BadField:
            pass  # the whole body is read, so that the field's name is right
    told = dialect.conversation()
    asked = read(read_object(body), told)
    new = _of_whole(dialect, path, body, told)
    return _Reading(asked, _digest(new or _Seen(path, body, 0, [], [], (), {})), new)


def _nearest(seen: Sequence[_Seen], body: bytes) -> tuple[_Seen | None, int]:
    """The body with the most items in common, and how many they are."""
    best, most, upto = None, 0, 0
    for one in seen:
        shared = common_prefix(one.body, body)
        items = bisect_right(one.ends, shared)
        if items and one.ends[items - 1] > upto:
            best, most, upto = one, items, one.ends[items - 1]
    return best, most


def _read_on(
    dialect: Dialect, read: Read, path: str, body: bytes, before: _Seen, items: int
) -> tuple[AgentRequest, _Seen] | None:
    """With the first `items` of a body that was read. None where the list is not where it was."""
    end, count = before.ends[items - 1], before.counts[items - 1]
    short = body[: before.begins] + _MARKED + body[end:]
    request = read_object(short)
    given = request.get(dialect.items)
    if not isinstance(given, list) or not given or given[0] != _MARK:
        return None
    told = dialect.conversation(before.messages[:count])
    asked = read(request | {dialect.items: given[1:]}, told)
    moved = end - before.begins - len(_MARKED)
    new = [at + moved for at in _ends_of(short, before.begins, dialect.items)[1:]]
    ends, counts = _whole(new, told)
    found = _Seen(
        path,
        body,
        before.begins,
        before.ends[:items] + ends,
        before.counts[:items] + counts,
        told.messages,
        {at: state for at, state in before.digests.items() if at <= end and path == before.path},
    )
    return asked, found


def _of_whole(dialect: Dialect, path: str, body: bytes, told: Conversation) -> _Seen | None:
    """None where it is not known where its items are."""
    if not told.counts:
        return None
    items = bytes(_objects.decode(body)[dialect.items])
    begins = body.find(items) + 1
    short = body[:begins] + _MARKED + b"]" + body[begins - 1 + len(items) :]
    try:
        if read_object(short).get(dialect.items) != [_MARK]:  # the same bytes stand elsewhere too
            return None
    except BadField:
        return None
    ends, counts = _whole(_ends_of(body, begins, dialect.items), told)
    return _Seen(path, body, begins, ends, counts, told.messages, {})


def _ends_of(body: bytes, begins: int, name: str) -> list[int]:
    """Where each item of a list ends. Only a comma and white space are between two."""
    ends = list[int]()
    for item in _lists.decode(_objects.decode(body)[name]):
        raw = bytes(item)
        begins = body.find(raw, begins) + len(raw)
        ends.append(begins)
    return ends


def _whole(ends: list[int], told: Conversation) -> tuple[list[int], list[int]]:
    """The places where no message is under way, and the messages up to there."""
    found = [(end, count) for end, count in zip(ends, told.counts, strict=True) if count is not None]
    return [end for end, _ in found], [count for _, count in found]


def _digest(seen: _Seen) -> str:
    """Of `body:`, the path and the body; it goes on from the last place that is known."""
    done = max(seen.digests, default=0)
    state = seen.digests[done].copy() if done else hashlib.sha256(b"body:" + seen.path.encode())
    for end in [end for end in seen.ends[-_STATES:] if end > done]:
        state.update(memoryview(seen.body)[done:end])
        seen.digests[end], done = state.copy(), end
    for end in sorted(seen.digests)[:-_STATES]:
        del seen.digests[end]
    state.update(memoryview(seen.body)[done:])
    return str(state.hexdigest())
