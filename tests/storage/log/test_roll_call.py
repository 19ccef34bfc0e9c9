"""Leases by roll call on a real server: one message of a taker at a time, and what a lost one held comes to others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import nats
import pytest

from schemas.errors import AccessDenied
from schemas.subjects import every_event
from storage.cancellation import end_all
from storage.jetstream.address import NatsAddress
from storage.jetstream.listeners import LISTENERS
from storage.jetstream.log import JetStreamLog
from storage.jetstream.own_time import CALLS
from storage.jetstream.roll_call import RollCall
from storage.log import Consumer, Delivery, append_all
from storage.nats.server import NatsServer
from tests.storage.log.appends import reward

LEASE_S = 1.2
EVENTS = 40


@contextlib.asynccontextmanager
async def log_with_events(server: NatsServer, count: int = EVENTS) -> AsyncIterator[JetStreamLog]:
    log = await JetStreamLog.open(server.url, "r")
    await append_all(log, [reward(log, f"a{number}") for number in range(count)])
    yield log
    await log.close()


async def take_all(consumer: Consumer, count: int) -> list[Delivery]:
    taken: list[Delivery] = []
    async with asyncio.timeout(20):
        while len(taken) < count:
            taken += await consumer.take(count - len(taken), 1.0)
    return taken


@contextlib.asynccontextmanager
async def working_on(deliveries: Sequence[Delivery]) -> AsyncIterator[None]:
    """While inside, they are renewed as an engine does."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            await asyncio.gather(*(delivery.working() for delivery in deliveries))

    task = asyncio.create_task(renew())
    yield
    task.cancel()


@contextlib.asynccontextmanager
async def killed_taker(server: NatsServer, count: int) -> AsyncIterator[set[int]]:
    """Let another process take `count` deliveries and be killed when the inside begins; yield their positions."""
    words = ("-m", "tests.storage.log.taker", server.url, "r", str(LEASE_S), str(count))
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 60)
    process.kill()
    await process.wait()
    yield set(map(int, line.split()))


async def messages_of(server: NatsServer, seconds: float) -> Counter[str]:
    """Yield the messages that takers send on the server meanwhile, by kind."""
    client, counts = await nats.connect(server.url), Counter[str]()

    async def count(message: nats.aio.msg.Msg) -> None:
        words = {b"+WPI": "renewal", b"-NAK": "given back", b"+ACK": "done"}
        counts[words.get(message.data, "call")] += 1

    for subject in ("$JS.ACK.>", "slime.*.roll.>"):
        await client.subscribe(subject, cb=count)
    await asyncio.sleep(seconds)
    await client.close()
    return counts


async def test_a_taker_sends_one_message_for_all_that_it_holds(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path) as server, log_with_events(server) as log:
        first, two = [await log.consume("q", every_event("r"), lease_s=LEASE_S) for _ in range(2)]
        held = await take_all(first, EVENTS)
        async with working_on(held):
            counts = await messages_of(server, 3 * LEASE_S)
            assert await two.take(1, 0.1) == []
        assert set(counts) == {"call"}
        assert counts["call"] <= 2 * (3 * CALLS + 1), "of two takers in three leases"
        for consumer in (first, two):
            await consumer.close()


async def test_what_a_killed_process_held_comes_to_the_other_taker(tmp_path: Path) -> None:
    """And what that one holds itself stays with it, each event once."""
    async with await NatsServer.start(tmp_path) as server, log_with_events(server) as log:
        other = await log.consume("q", every_event("r"), lease_s=LEASE_S)
        own = await take_all(other, EVENTS // 2)
        async with working_on(own), killed_taker(server, EVENTS // 2) as lost:
            again = await take_all(other, len(lost))
            assert {delivery.recorded.position for delivery in again} == lost
            assert {delivery.attempt for delivery in again} == {2}
            async with working_on(again):
                assert await other.take(1, 2 * LEASE_S) == []
        await other.close()


async def test_few_of_many_takers_listen_and_others_follow_them(tmp_path: Path) -> None:
    """All that listen are lost at once, each with an event."""
    count = 3 * LISTENERS
    async with await NatsServer.start(tmp_path) as server, log_with_events(server, count) as log:
        takers = [await log.consume("q", every_event("r"), lease_s=LEASE_S) for _ in range(count)]
        held = [(await take_all(taker, 1))[0] for taker in takers]
        roll_calls = [taker._roll_call for taker in takers]  # type: ignore[attr-defined]

        async def settled() -> list[int]:
            while not (listening := [at for at in alive if roll_calls[at]._listeners.listens])[LISTENERS - 1 :]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return listening

        alive = list(range(count))
        async with working_on(held), asyncio.timeout(30):
            lost = await settled()
            await asyncio.sleep(LEASE_S)
            lost = await settled()
            assert len(lost) <= 2 * LISTENERS
            await end_all(*(task for at in lost for task in roll_calls[at]._tasks))
            alive = [at for at in alive if at not in lost]
            again = await take_all(takers[alive[0]], len(lost))
            assert {delivery.recorded.position for delivery in again} == {held[at].recorded.position for at in lost}
            assert await settled() == [at for at in alive if roll_calls[at]._listeners.listens]
        for taker in takers:
            await taker.close()


async def test_what_the_only_taker_held_comes_to_the_next_one(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path) as server, log_with_events(server) as log:
        async with killed_taker(server, EVENTS) as lost:
            heir = await log.consume("q", every_event("r"), lease_s=LEASE_S)
            again = await take_all(heir, EVENTS)
        assert {delivery.recorded.position for delivery in again} == lost
        for delivery in again:
            await delivery.done()
        async with asyncio.timeout(30):
            while await log.done_up_to("q") < EVENTS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await heir.close()


async def test_a_delivery_that_nobody_knows_of_comes_again(tmp_path: Path) -> None:
    """One that is lost between nodes of a cluster breaks nobody's connection."""
    async with await NatsServer.start(tmp_path) as server, log_with_events(server, 3) as log:
        taker = await log.consume("q", every_event("r"), lease_s=LEASE_S)
        lost, *held = await take_all(taker, 3)
        async with working_on([lost, *held]), asyncio.timeout(20):
            while not taker._roll_call._leases.knows:  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        taker._taken.deliveries.discard(lost)  # type: ignore[attr-defined]
        again: list[Delivery] = []
        async with working_on(held), asyncio.timeout(40):  # a slow machine may lose others too
            while lost.recorded.position not in [delivery.recorded.position for delivery in again]:
                again += await taker.take(1, 1.0)
        assert again[-1].attempt == 2
        await taker.close()


async def test_a_live_taker_that_does_not_renew_loses_that_event_alone(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path) as server, log_with_events(server) as log:
        first, two = [await log.consume("q", every_event("r"), lease_s=LEASE_S) for _ in range(2)]
        forgotten, *held = await take_all(first, EVENTS)
        async with working_on(held):
            (again,) = await take_all(two, 1)
            assert (again.recorded.position, again.attempt) == (forgotten.recorded.position, 2)
            async with working_on([again]):
                assert await two.take(1, 2 * LEASE_S) == []
        for consumer in (first, two):
            await consumer.close()


async def test_a_server_that_is_paused_takes_nothing_from_anybody(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path) as server, log_with_events(server) as log:
        other = await JetStreamLog.open(server.url, "r")
        first, two = [await each.consume("q", every_event("r"), lease_s=LEASE_S) for each in (log, other)]
        held = await take_all(first, EVENTS)
        async with working_on(held):
            await asyncio.sleep(LEASE_S)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(2 * LEASE_S)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert await two.take(1, 2 * LEASE_S) == []
        for consumer in (first, two):
            await consumer.close()
        await other.close()


async def test_a_server_that_starts_again_leaves_events_with_who_works_on_them(tmp_path: Path) -> None:
    """Deliver again what was on the way, and what lost its ack. A server may forget what it delivered just before its
    end, and delivers it as if for the first time: never to say that an event is over.
    """
    server = await NatsServer.start(tmp_path)
    async with log_with_events(server) as log:
        other = await JetStreamLog.open(server.url, "r")
        first, two = [await each.consume("q", every_event("r"), lease_s=LEASE_S) for each in (log, other)]
        held = await take_all(first, EVENTS)
        async with working_on(held):
            await asyncio.sleep(LEASE_S)  # the server stores its consumers' state after a while
            for delivery in held[: EVENTS // 2]:
                await delivery.done()
            os.kill(server.pid, signal.SIGKILL)
            await server.stop()
            async with await NatsServer.start(tmp_path) as again:
                assert again.url == server.url
                redelivered = list[Delivery]()
                async with asyncio.timeout(20):
                    while (floor := await log.done_up_to("q")) < EVENTS // 2:
                        redelivered += await two.take(EVENTS, 0.2)
                        for delivery in redelivered:
                            if delivery.recorded.position <= EVENTS // 2:
                                await delivery.done()
                assert floor >= EVENTS // 2
                late = [
                    delivery
                    for delivery in redelivered
                    if delivery.recorded.position > EVENTS // 2 and delivery.attempt > 1
                ]
                assert not late, "what is held is not given back"
                for consumer in (first, two):
                    await consumer.close()
        await other.close()


async def test_what_is_no_roll_call_changes_nothing(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path) as server, log_with_events(server, 1) as log:
        consumer = await log.consume("q", every_event("r"), lease_s=LEASE_S)
        client = await nats.connect(server.url)
        for data in (b"", b"\x00", b"\x93\xa1x\x01\x90", b'{"taker": 1}'):
            await client.publish("slime.r.roll.q.listener.x", data)
        await client.flush()
        held = await take_all(consumer, 1)
        async with working_on(held):
            assert await consumer.take(1, 2 * LEASE_S) == []
        await consumer.close()
        await client.close()


@contextlib.asynccontextmanager
async def one_is_pulled(server: NatsServer, log: JetStreamLog, lease_s: float) -> AsyncIterator[list[Consumer]]:
    """Two takers; what is appended now lies in the buffer of the first, which asked for it and takes nothing more."""
    other = await JetStreamLog.open(server.url, "r")
    takers = [await each.consume("q", every_event("r"), lease_s=lease_s) for each in (log, other)]
    asking = asyncio.create_task(takers[0].take(1, 20.0))
    await asyncio.sleep(0.1)
    asking.cancel()
    await asyncio.wait({asking})
    await log.append([reward(log, "pulled")])
    await asyncio.sleep(0.1)
    assert await takers[1].take(1, 0.1) == []
    yield takers
    for taker in takers:
        await taker.close()
    await other.close()


async def test_what_was_pulled_and_is_not_taken_comes_to_others_after_a_lease(tmp_path: Path) -> None:
    stack = contextlib.AsyncExitStack()
    async with await NatsServer.start(tmp_path) as server, log_with_events(server, 0) as log, stack:
        takers = await stack.enter_async_context(one_is_pulled(server, log, LEASE_S))
        (again,) = await take_all(takers[1], 1)
        assert again.attempt == 2
        assert await takers[0].take(1, 0.1) == [], "its lease is over there"


async def test_what_was_pulled_comes_to_others_at_once_where_its_taker_is_closed(tmp_path: Path) -> None:
    stack = contextlib.AsyncExitStack()
    async with await NatsServer.start(tmp_path) as server, log_with_events(server, 0) as log, stack:
        takers = await stack.enter_async_context(one_is_pulled(server, log, 600.0))
        await takers[0].close()
        (again,) = await take_all(takers[1], 1)
        assert again.attempt == 2


async def test_what_was_pulled_is_held_while_others_are_given_back(tmp_path: Path) -> None:
    """The keeper looks up all that came after what it has heard of."""
    async with await NatsServer.start(tmp_path) as server, log_with_events(server, 1) as log:
        third = await log.consume("q", every_event("r"), lease_s=3.0)
        (first,) = await take_all(third, 1)
        async with one_is_pulled(server, log, 3.0) as (holder, two):
            await first.release()
            (again,) = await take_all(two, 1)
            assert again.recorded.position == 1
            assert await two.take(1, 2.2) == []
            (pulled,) = await take_all(holder, 1)
            assert (pulled.recorded.position, pulled.attempt) == (2, 1)
            for delivery in (again, pulled):
                await delivery.done()
        await third.close()


async def test_what_was_pulled_is_not_given_out_after_its_lease(tmp_path: Path) -> None:
    """Its taker's process was paused: the next call of `take` comes before anything else."""
    stack = contextlib.AsyncExitStack()
    async with await NatsServer.start(tmp_path) as server, log_with_events(server, 0) as log, stack:
        takers = await stack.enter_async_context(one_is_pulled(server, log, 0.6))
        time.sleep(0.7)  # noqa: ASYNC251
        taken = await takers[0].take(1, 0.0)
        assert taken == []


@pytest.mark.parametrize("act", ["publish", "subscribe"])
async def test_who_may_not_call_or_hear_calls_takes_nothing(tmp_path: Path, act: str) -> None:
    """Nobody would know what became of it."""
    denied = f'permissions: {{ {act}: {{ deny: "slime.*.roll.>" }} }}'
    limited = f"authorization {{ users: [{{ user: me, password: pw, {denied} }}] }}"
    async with await NatsServer.start(tmp_path, more=limited) as server:
        log = await JetStreamLog.open(NatsAddress(url=server.url, user="me", password="pw"), "r")

        async def take() -> None:
            consumer = await log.consume("q", every_event("r"), lease_s=0.3)
            async with asyncio.timeout(20):
                while True:
                    await consumer.take(1, 0.2)

        with pytest.raises(AccessDenied, match=r"slime\.r\.roll\.q"):
            await take()
        await log.close()


async def test_a_keeper_that_ends_with_an_error_ends_its_taker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a keeper nobody would notice a lost taker, so the next take raises the error."""

    async def unreadable(_: RollCall) -> dict[str, int]:
        return {}

    monkeypatch.setattr(RollCall, "_info", unreadable)
    async with await NatsServer.start(tmp_path) as server, log_with_events(server) as log:
        consumer = await log.consume("q", every_event("r"), lease_s=LEASE_S)
        with pytest.raises(KeyError):
            await take_all(consumer, EVENTS + 1)
        await consumer.close()
