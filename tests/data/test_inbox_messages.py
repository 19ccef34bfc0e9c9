"""The inbox at its connection: what it subscribes to, whose messages they are, how they are answered, and its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors
import pytest

from actors import inbox_actor
from actors.inbox import Inbox, _whole
from schemas.errors import EventTooLarge, LogUnavailable, StoreUnavailable
from schemas.inbox import KIND, KINDS, SENDER, InboxFates, InboxPrompt, InboxReply
from schemas.prompts import PromptSubmitted
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.process_environment import NICE_IDLE
from slime_events.core.state.run import RunPhase
from storage.jetstream.address import NatsAddress
from storage.log import MAX_BATCH
from storage.memory_log import MemoryLog
from tests.simulation.simulation import Simulation, make_plan


class Message:
    """One that somebody sent."""

    def __init__(self, content: Any, *, reply: str = "_INBOX.1", **headers: str) -> None:
        self.data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.headers, self.reply, self.replies = headers or None, reply, list[bytes]()

    async def respond(self, data: bytes) -> None:
        assert self.reply
        self.replies.append(data)

    @property
    def answer(self) -> InboxReply:
        (data,) = self.replies
        return msgspec.json.decode(data, type=InboxReply)


class Connection:
    """A NATS client."""

    def __init__(self, error: Exception | None = None) -> None:
        self.subscribed, self.ended, self._error = dict[str, Any](), list[str](), error

    async def subscribe(self, subject: str, cb: Any) -> None:
        self.subscribed[subject] = cb

    async def drain(self) -> None:
        self.ended.append("drained")
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        self.ended.append("closed")


class Kept(Inbox):
    """Keep what comes instead of accepting it."""

    def __init__(self, sim: Simulation, error: Exception | None = None) -> None:
        super().__init__(sim.inbox._worker, sim._doors, sim.state_now, NatsAddress(url="nats://127.0.0.1:1"))
        self.calls, self._failing = list[tuple[Any, ...]](), error

    async def accept(self, *args: Any) -> InboxReply:  # type: ignore[override]
        self.calls.append(args)
        if self._failing is not None:
            raise self._failing
        return InboxReply(accepted=True, groups=("g",))


async def connected(monkeypatch: pytest.MonkeyPatch, connection: Connection) -> dict[str, Any]:
    options = dict[str, Any]()

    async def connect(**kwargs: Any) -> Connection:
        options.update(kwargs)
        return connection

    monkeypatch.setattr(nats, "connect", connect)
    return options


async def test_each_kind_has_a_subject_and_only_a_gateway_names_senders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection()
    options = await connected(monkeypatch, connection)
    headers = {SENDER: "team", KIND: "rewards", "traceparent": "00-1"}
    async with Simulation(tmp_path) as sim:
        async with Kept(sim) as inbox:
            heard = {subject.rpartition(".")[2]: cb for subject, cb in connection.subscribed.items()}
            assert set(heard) == {*KINDS, "gateway", "groups"}
            for kind in KINDS:
                await heard[kind](Message([1], **headers))
            await heard["gateway"](Message([2], **headers))
            await heard["gateway"](Message([3]))
        assert [(call[0], *call[1:]) for call in inbox.calls] == [
            *((b"[1]", "00-1", "", kind) for kind in KINDS),
            (b"[2]", "00-1", "team", "rewards"),
            (b"[3]", None, "", "prompts"),
        ]
    assert options["max_reconnect_attempts"] == -1
    assert connection.ended == ["drained"]
    assert inbox._closing.closed


async def test_a_connection_that_is_gone_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection(nats.errors.ConnectionClosedError())
    await connected(monkeypatch, connection)
    async with Simulation(tmp_path) as sim:
        inbox = Kept(sim)
        async with inbox:
            assert not inbox._closing.closed
    assert connection.ended == ["drained", "closed"]


async def test_what_cannot_be_taken_now_is_to_be_sent_again(tmp_path: Path) -> None:
    async with Simulation(tmp_path) as sim:
        message = Message([1])
        await Kept(sim, LogUnavailable("away"))._receive(message)
        assert not message.answer.accepted
        assert [(error.index, error.field) for error in message.answer.errors] == [(0, "")]
        silent = Message([1], reply="")
        await Kept(sim)._receive(silent)
        assert silent.replies == []


async def test_questions_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fates_of(sim: Simulation, content: Any, reply: str = "_INBOX.1") -> list[InboxFates]:
        message = Message(content, reply=reply)
        await sim.inbox._tell(message)
        return [msgspec.json.decode(data, type=InboxFates) for data in message.replies]

    async def away(*_: Any) -> InboxFates:
        raise StoreUnavailable("away")

    async with Simulation(tmp_path) as sim:
        (fates,) = await fates_of(sim, {"keys": ["k"]})
        assert ([group.key for group in fates.groups], fates.errors) == (["k"], ())
        assert await fates_of(sim, {"keys": ["k"]}, reply="") == []
        (wrong,) = await fates_of(sim, b"{")
        assert [(error.index, error.field) for error in wrong.errors] == [(0, "message")]
        monkeypatch.setattr("actors.inbox.fates_of", away)
        (later,) = await fates_of(sim, {"keys": ["k"]})
        assert [(error.index, error.field) for error in later.errors] == [(0, "")]


async def test_what_a_run_does_not_take_is_refused_as_a_whole(tmp_path: Path) -> None:
    async with Simulation(tmp_path) as sim:
        reply = await sim.inbox.accept(b"[]", kind="songs")
        assert (reply.accepted, [(error.index, error.field) for error in reply.errors]) == (False, [(0, "message")])
        assert await sim.inbox.accept(b"[]") == InboxReply(accepted=True)


@pytest.mark.parametrize("phase", [RunPhase.FINISHED, RunPhase.FAILED])
async def test_a_run_that_is_over_takes_nothing(tmp_path: Path, phase: RunPhase) -> None:
    async with Simulation(tmp_path) as sim:
        state = await sim.state_now()

        async def over() -> Any:
            state.phase = phase
            return state

        sim.inbox._state = over
        with pytest.raises(LogUnavailable):
            await sim.inbox.accept(b'{"key": "k", "prompt": "p"}')


async def test_items_that_are_too_large_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_large(_: Any) -> None:
        raise EventTooLarge("all of it")

    async with Simulation(tmp_path) as sim:
        monkeypatch.setattr(sim.inbox._worker.log, "append", too_large)
        reply = await sim.inbox.accept(b'[{"key": "k", "prompt": "p"}]')
        monkeypatch.undo()
        assert (reply.accepted, [(error.index, error.field) for error in reply.errors]) == (False, [(0, "message")])


async def test_doors_are_opened_once_and_by_the_first_message(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(), prompts=[]) as sim:
        opened = list[int]()

        async def opens() -> Any:
            opened.append(1)
            return await sim._doors()

        inbox = Inbox(sim.inbox._worker, opens, sim.state_now, NatsAddress(url=""), room=lambda state, sender: 1)
        assert opened == []
        for key in ("a", "b"):
            reply = await inbox.accept(msgspec.json.encode(InboxPrompt(key=key, prompt="p")), "00-" + "1" * 52, "team")
            assert reply.accepted
        assert opened == [1]
        assert {event.source.sender for event in sim.events(PromptSubmitted, dataset="inbox")} == {"team"}
        full = Inbox(sim.inbox._worker, opens, sim.state_now, NatsAddress(url=""), room=lambda state, sender: 0)
        reply = await full.accept(b'{"key": "c", "prompt": "p"}')
        assert (reply.accepted, reply.full, [error.field for error in reply.errors]) == (False, True, [""])


def test_the_role_works_for_others_first_once_its_doors_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[Any]()
    monkeypatch.setattr("actors.doors.doors_of", lambda settings, log: calls.append((settings, log)) or {"prompts": 1})
    monkeypatch.setattr(inbox_actor, "yield_to_others", calls.append)
    settings, log = TrainSettings(), MemoryLog("r")
    assert inbox_actor._open(settings, log) == {"prompts": 1}
    assert calls == [(settings, log), NICE_IDLE]


def parts(*sizes: int) -> list[int]:
    parts_: Sequence[Any] = [[object()] * size for size in sizes]
    return [len(part) for part in _whole(parts_)]


def test_items_are_whole_in_as_few_appends_as_there_can_be() -> None:
    assert parts() == parts(0) == []
    assert parts(1, 2, 3) == [6]
    assert parts(MAX_BATCH - 1, 1, 1) == [MAX_BATCH, 1]
    assert parts(MAX_BATCH - 1, 2) == [MAX_BATCH - 1, 2]
    assert parts(MAX_BATCH + 5, 1) == [MAX_BATCH + 5, 1]
    assert parts(1, 0, 1) == [2]
