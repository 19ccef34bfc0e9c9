"""The trainer's side of broadcasts: epochs in the log, with a sender that is a script."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.trainer import transfer_desk
from actors.trainer.transfer_desk import TransferDesk
from actors.trainer.transfer_sender import Answer, Listening, Over, Send
from schemas.event import Event
from schemas.subjects import every_event
from schemas.transfers import TransferBegun, TransferEnded, TransferJoined, TransferOutcome
from schemas.weights import WeightsCarrier
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.core.child.frames import PeerEnded
from slime_events.core.run.participant import Participant
from storage.log import once
from storage.memory_log import MemoryLog
from storage.weights.store import WeightStore
from tests import made

PORT = 4242


class Script:
    """A `Sender` that answers as told: an `Over` at once, or nothing until it is killed."""

    def __init__(self, *answers: Over | None, port: int = PORT) -> None:
        self.answers, self.port = list(answers), port
        self.requests: list[Send] = []
        self.killed = threading.Event()
        self.closed = False

    def send(self, request: Send) -> Answer:
        self.requests.append(request)
        return Listening(self.port) if self.port else Over("no port is free")

    def answer(self) -> Answer:
        answer = self.answers.pop(0)
        if answer is None:
            assert self.killed.wait(20.0)
            raise PeerEnded("the sender of weights was ended by SIGKILL")
        return answer

    def end(self) -> None:
        self.killed.set()

    def close(self) -> None:
        assert self.killed.is_set()
        self.closed = True


class Desk:
    """A desk over a log in memory, with the senders that it starts in order."""

    def __init__(self, *senders: Script) -> None:
        self.log, self.left = MemoryLog("r"), queue.Queue[Script]()
        for sender in senders:
            self.left.put(sender)
        self.worker = Participant(self.log, "trainer", "t")

    @asynccontextmanager
    async def opened(self, memory: str = "") -> AsyncIterator[None]:
        async with TransferDesk(self.worker, "10.0.0.1", self.left.get_nowait, memory=memory).opened():
            yield

    async def say(self, *events: Event) -> None:
        for event in events:
            await self.log.append([once(self.worker.enclose(event))])

    async def epochs(self, count: int) -> Sequence[TransferBegun | TransferEnded]:
        """Return the epochs' events, at least `count`."""
        async with asyncio.timeout(20.0):
            while True:
                read = self.log.read(1, every_event("r"))
                events = [recorded.envelope.event async for recorded in read]
                here = [event for event in events if isinstance(event, TransferBegun | TransferEnded)]
                if len(here) >= count:
                    return here
                await asyncio.sleep(0.01)


def offered(version: int = 0) -> Event:
    return made.published(version, carrier=WeightsCarrier.COLLECTIVE)


def engine(name: str) -> Event:
    return WorkerJoined(worker=name, role="engine", pid=1)


def joined(name: str, version: int = 0, ranks: int = 1) -> Event:
    return TransferJoined(version=version, engine=name, ranks=ranks)


async def test_all_engines_that_wait_are_members_of_an_epoch() -> None:
    desk = Desk(sender := Script(Over()))
    await desk.say(engine("a"), engine("b"), offered(), joined("a", ranks=2), joined("b"))
    async with desk.opened():
        begun, ended = await desk.epochs(2)
    assert begun == TransferBegun(
        epoch=1, version=0, address="10.0.0.1", port=PORT, members={"a": 1, "b": 3}, world=4, backend="gloo"
    )
    assert isinstance(ended, TransferEnded)
    assert (ended.epoch, ended.outcome, ended.reason) == (1, TransferOutcome.SENT, "")
    assert [(request.epoch, request.url, request.digest, request.world) for request in sender.requests] == [
        (1, "u", "d0", 4)
    ]
    assert sender.closed


async def test_a_version_in_memory_is_sent_from_there(tmp_path: Path) -> None:
    memory = WeightStore(str(tmp_path))
    manifest = memory.write(0, [("w", "F32", (1,), bytes(4))], None)
    desk = Desk(sender := Script(Over(), Over()))
    await desk.say(engine("a"), made.published(0, carrier=WeightsCarrier.COLLECTIVE, digest=manifest.digest))
    await desk.say(joined("a"))
    async with desk.opened(str(tmp_path)):
        await desk.epochs(2)
        await desk.say(offered(1), joined("a", version=1))
        await desk.epochs(4)
    assert [request.url for request in sender.requests] == [memory.folder(0), "u"]


async def test_an_engine_waits_for_another_that_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_desk, "GATHER_S", 20.0)
    monkeypatch.setattr(transfer_desk, "END_S", 0.1)
    desk = Desk(Script(Over()))
    await desk.say(engine("a"), engine("b"), offered(), joined("a"))
    async with desk.opened():
        await asyncio.sleep(0.3)  # the desk sees that an engine waits
        await desk.say(joined("b"))
        begun, _ = await desk.epochs(2)
    assert isinstance(begun, TransferBegun)
    assert dict(begun.members) == {"a": 1, "b": 2}


async def test_an_engine_does_not_wait_long_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_desk, "GATHER_S", 0.05)
    desk = Desk(Script(Over(), Over()))
    await desk.say(engine("a"), engine("b"), offered(), joined("a"))
    async with desk.opened():
        await desk.epochs(2)
        await desk.say(joined("b"))
        epochs = await desk.epochs(4)
    assert [dict(event.members) for event in epochs if isinstance(event, TransferBegun)] == [{"a": 1}, {"b": 1}]
    assert [event.epoch for event in epochs] == [1, 1, 2, 2]


async def test_a_lost_member_ends_its_epoch_and_the_sender() -> None:
    """The next epoch has a new sender."""
    desk = Desk(first := Script(None), second := Script(Over()))
    await desk.say(engine("a"), offered(), joined("a"))
    async with desk.opened():
        await desk.epochs(1)
        await desk.say(WorkerLost(worker="a", role="engine", reason="killed"))
        _, ended = await desk.epochs(2)
        assert isinstance(ended, TransferEnded)
        assert ended.outcome is TransferOutcome.FAILED
        assert "a" in ended.reason
        assert first.closed
        await desk.say(offered(1), engine("b"), joined("b", 1))
        *_, begun, ended = await desk.epochs(4)
    assert isinstance(begun, TransferBegun)
    assert isinstance(ended, TransferEnded)
    assert (begun.epoch, begun.version, ended.outcome) == (2, 1, TransferOutcome.SENT)
    assert len(second.requests) == 1


@pytest.mark.parametrize("answer", [Over("RuntimeError: connection reset"), None])
async def test_a_failure_is_recorded_and_the_next_version_is_sent(
    answer: Over | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the sender hangs: then it is killed."""
    monkeypatch.setattr(transfer_desk, "STEP_S", 0.1)
    desk = Desk(Script(answer), Script(Over()))
    await desk.say(engine("a"), offered(), joined("a"))
    async with desk.opened():
        _, failed = await desk.epochs(2)
        await desk.say(offered(1), joined("a", 1))
        *_, sent = await desk.epochs(4)
    assert isinstance(failed, TransferEnded)
    assert isinstance(sent, TransferEnded)
    assert (failed.outcome, sent.outcome) == (TransferOutcome.FAILED, TransferOutcome.SENT)
    assert failed.reason


async def test_the_epoch_of_a_killed_trainer_is_ended_by_the_next() -> None:
    desk = Desk(sender := Script(Over()))
    old = TransferBegun(epoch=1, version=0, address="h", port=1, members={"a": 1}, world=2)
    await desk.say(engine("a"), offered(), joined("a"), old, WorkerJoined(worker="t", role="trainer", pid=1))
    async with desk.opened():
        _, ended = await desk.epochs(2)
        assert isinstance(ended, TransferEnded)
        assert (ended.epoch, ended.outcome) == (1, TransferOutcome.FAILED)
        await desk.say(offered(1), joined("a", 1))
        *_, begun, _ = await desk.epochs(4)
    assert begun.epoch == 2
    assert len(sender.requests) == 1


async def test_a_sender_that_cannot_listen_begins_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_desk, "RETRY_S", 0.01)
    desk = Desk(Script(port=0), Script(Over()))
    await desk.say(engine("a"), offered(), joined("a"))
    async with desk.opened():
        begun, _ = await desk.epochs(2)
    assert begun.epoch == 1


async def test_a_desk_ends_if_another_trainer_has_begun_the_epoch() -> None:
    """Training continues, and engines take files."""
    desk, loop = Desk(sender := Script(Over())), asyncio.get_running_loop()
    other = TransferBegun(epoch=1, version=0, address="h", port=1, members={"a": 1}, world=2)

    def overtaken(request: Send) -> Answer:
        asyncio.run_coroutine_threadsafe(desk.say(other), loop).result(20.0)
        return Listening(PORT)

    sender.send = overtaken  # type: ignore[method-assign]
    await desk.say(engine("a"), offered(), joined("a"))
    async with desk.opened():
        await desk.epochs(1)
        await desk.say(WorkerLost(worker="a", role="engine", reason="killed"))
        await asyncio.sleep(0.3)
    assert await desk.epochs(1) == [other], "it neither sends nor ends what is not its own"
    assert sender.closed
