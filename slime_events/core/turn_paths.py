"""`TurnPaths`: whole prompts of the turns of agents' sessions. The log has what is new in a turn, and the rest once."""

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from schemas.arrays import Array
from schemas.errors import StorageError
from schemas.ids import turn_of_group
from schemas.rollouts import RolloutRequested, TurnEnd
from schemas.subjects import about
from schemas.turns import TurnRecorded
from slime_events.core.trajectory import Fetch
from storage.log import Readable

Tokens = npt.NDArray[np.int32]
KEPT = 64 * 1024 * 1024
"""Tokens of sessions in memory (256 MB); those of a session that nobody asked for the longest are read again."""


@dataclass(slots=True)
class _Room:
    """Numbers that paths share. used: how many are."""

    numbers: Tokens = field(default_factory=lambda: np.zeros(0, np.int32))
    used: int = 0


@dataclass(frozen=True, slots=True)
class TokenPath:
    """Tokens from the beginning of a prompt on. What goes on from a path is written behind it, so a path of a thousand
    turns takes the time and the room of its tokens; a second way on from the same path is a copy.
    """

    length: int = 0
    room: _Room = field(default_factory=_Room)

    def whole(self) -> Tokens:
        """int32 [length], read-only."""
        view = self.room.numbers[: self.length]
        view.flags.writeable = False
        return view

    def then(self, tokens: Tokens) -> "TokenPath":
        """The path that goes on with these."""
        room, end = self.room, self.length + len(tokens)
        if room.used >= end and np.array_equal(room.numbers[self.length : end], tokens):
            return TokenPath(end, room)
        if room.used != self.length:
            room = _Room(room.numbers, self.length)
        if room is not self.room or end > len(room.numbers):
            numbers = np.zeros(max(end + end // 4, 64), np.int32)
            numbers[: self.length] = room.numbers[: self.length]
            room.numbers = numbers
        room.numbers[self.length : end] = tokens
        room.used = end
        return TokenPath(end, room)


@dataclass(slots=True)
class _Session:
    """Ends of turns as far as they are known. position: up to where the log was read for them. size: tokens."""

    sample: str
    ends: dict[int, TokenPath] = field(default_factory=dict)
    rooms: dict[int, _Room] = field(default_factory=dict)
    position: int = 0
    size: int = 0

    def add(self, turn: int, end: TokenPath) -> int:
        """How many more tokens it takes."""
        self.ends[turn], self.rooms[id(end.room)] = end, end.room
        before, self.size = self.size, sum(len(room.numbers) for room in self.rooms.values())
        return self.size - before


class TurnPaths:
    """Of one run's log. kept: tokens in memory, at most."""

    def __init__(self, log: Readable, fetch: Fetch, kept: int = KEPT) -> None:
        self._log, self._fetch, self._most, self._size = log, fetch, kept, 0
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    async def prompt(self, own: Array, after: TurnEnd | None) -> Tokens:
        """All tokens before the first that is generated, int32 [prompt], read-only. own, after: of the request. The log
        is read for turns that were not made here, from where it was read last. Raises StorageError where it does not
        have the turn.
        """
        tokens = self._fetch(own)
        return tokens if after is None else (await self._upto(after)).then(tokens).whole()

    def made(self, request: RolloutRequested, tokens: Tokens) -> None:
        """Here, with the prompt that `prompt` gave: what goes on from the turn needs no look at the log."""
        turn = turn_of_group(request.group)
        if turn is None:
            return
        session, before = self._session(turn[0]), TokenPath()
        if request.after is not None:
            if request.after.turn not in session.ends:
                return
            before = session.ends[request.after.turn]
        self._add(session, turn[1], before.then(self._fetch(request.prompt)).then(tokens))

    async def _upto(self, end: TurnEnd) -> TokenPath:
        session = self._session(end.sample)
        if end.turn not in session.ends:
            await self._read(session)
        found = session.ends.get(end.turn)
        if found is None or found.length != end.length:
            has = "not in the log" if found is None else f"{found.length} tokens long"
            raise StorageError(
                f"a prompt of run {self._log.run} goes on from the first {end.length} tokens up to turn {end.turn} of "
                f"the session of {end.sample}, and that is {has}: `slime-events audit` lists what else is missing"
            )
        return found

    async def _read(self, session: _Session) -> None:
        async for recorded in self._log.read(session.position + 1, about(self._log.run, "turn", session.sample)):
            event, session.position = recorded.envelope.event, recorded.position
            if not isinstance(event, TurnRecorded) or event.agent is None:
                continue
            before = TokenPath() if event.extends is None else session.ends.get(event.extends)
            if before is not None:
                end = before.then(self._fetch(event.observed)).then(self._fetch(event.tokens))
                self._add(session, event.index, end)

    def _session(self, sample: str) -> _Session:
        session = self._sessions.setdefault(sample, _Session(sample))
        self._sessions.move_to_end(sample)
        return session

    def _add(self, session: _Session, turn: int, end: TokenPath) -> None:
        more = session.add(turn, end)
        self._size += more if self._sessions.get(session.sample) is session else 0
        while self._size > self._most and len(self._sessions) > 1:
            self._size -= self._sessions.popitem(last=False)[1].size
