"""Checks what a run's own server permits to each role."""

from __future__ import annotations

import asyncio
import json
import pickle
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest

from schemas.errors import AccessDenied
from schemas.subjects import inbox, stream_name
from storage.jetstream.log import JetStreamLog
from storage.jetstream.pull import BULK_FROM
from storage.nats.accounts import READERS, Access, file_of, guard
from storage.nats.server import NatsServer
from storage.open_log import open_run_log, own_server
from tests.harness.strangers.forbidden import acts_of, commit_all
from tests.storage.log.appends import reward

RUN = "guarded"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Yield the server of a run with one event and a queue of requests."""
    async with await own_server(tmp_path / RUN, RUN) as server:
        log = await JetStreamLog.open(server.address(Access.ROLES), RUN)
        await log.append([reward(log, "a")])
        await (await log.consume("engines", f"slime.{RUN}.rollout.requested.*")).close()
        await log.close()
        yield server


async def test_every_forbidden_act_is_refused(server: NatsServer) -> None:
    assert len([act for act in acts_of(RUN) if act.who is Access.PRODUCER]) >= 40
    assert await commit_all(RUN, server.address) == []


async def test_acts_are_found_out_where_nothing_is_forbidden(tmp_path: Path) -> None:
    """So that the test above can fail."""
    async with await NatsServer.start(tmp_path) as server:
        await (await JetStreamLog.open(server.url, RUN)).close()
        let = await commit_all(RUN, server.address)
    assert {f"{act}" for act in acts_of(RUN) if act.who is Access.PRODUCER} <= set(let)
    assert [word for word in let if word.startswith("nobody")]
    assert [word for word in let if word.startswith("the stream or its consumers changed")]


@pytest.mark.parametrize("access", [Access.PRODUCER, *READERS])
async def test_no_answer_is_stored_in_the_log(server: NatsServer, access: Access) -> None:
    """An asker names the subject of the answer: where that is one of the stream's, it goes nowhere."""
    roles = await JetStreamLog.open(server.address(Access.ROLES), RUN)

    async def answer(message: Any) -> None:
        await message.respond(b"{}")
        answered.set()

    answered = asyncio.Event()
    await roles.connection.client.subscribe(inbox(RUN, "launcher" if access in READERS else "prompts"), cb=answer)
    await roles.connection.client.flush()
    client = await nats.connect(**server.address(access).options())
    api = [f"$JS.API.{what}.{stream_name(RUN)}" for what in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")]
    allowed = [*api, inbox(RUN, "launcher")] if access in READERS else [inbox(RUN)]
    for subject in allowed:
        await client.publish(subject, b'{"seq":1}', reply=f"slime.{RUN}.weights.published.v9")
    await asyncio.wait_for(answered.wait(), 10)
    await client.flush()
    await roles.connection.client.flush()
    assert await roles.position() == 1
    await client.close()
    await roles.close()


async def test_a_producer_is_answered_and_hears_no_other_account(server: NatsServer) -> None:
    roles = await JetStreamLog.open(server.address(Access.ROLES), RUN)

    async def answer(message: Any) -> None:
        await message.respond(message.data)

    for what in ("prompts", "groups"):
        await roles.connection.client.subscribe(inbox(RUN, what), cb=answer)
    client = await nats.connect(**server.address(Access.PRODUCER).options())
    everything = await client.subscribe("_INBOX.>")
    await client.flush()
    assert [(await client.request(inbox(RUN, what), b"here")).data for what in ("prompts", "groups")] == [b"here"] * 2
    await roles.position()  # answered on `_INBOX` of its own
    await client.flush()
    assert {message.data async for message in _pending(everything)} == {b"here"}
    await client.close()
    await roles.close()


async def _pending(subscription: Any) -> AsyncIterator[Any]:
    while subscription.pending_msgs:
        yield await subscription.next_msg()


async def test_a_viewer_reads_and_follows_without_a_consumer(server: NatsServer) -> None:
    roles = await JetStreamLog.open(server.address(Access.ROLES), RUN)
    log = await JetStreamLog.open(server.address(Access.VIEWER), RUN, create=False, retry_s=2.0)
    for part in range(BULK_FROM // 1000 + 1):  # enough that a reader with rights to consumers would create one
        await roles.append([reward(roles, f"{part}-{n}") for n in range(1000)])
    read = [recorded async for recorded in log.read()]
    assert [recorded.position for recorded in read] == list(range(1, len(read) + 1))
    assert len(read) == await log.position() > BULK_FROM
    assert await log.last(read[-1].subject) == read[-1]
    assert list((await log.last_of_each([read[0].subject])).values()) == [read[0]]
    assert len(await log.subjects(f"slime.{RUN}.reward.>")) == len(read)
    following = aiter(log.read(len(read) + 1, f"slime.{RUN}.reward.>", follow=True))
    coming = asyncio.ensure_future(anext(following))
    await roles.append([reward(roles, "new")])
    assert (await asyncio.wait_for(coming, 10)).position == len(read) + 1
    with pytest.raises(AccessDenied):
        await log.append([reward(log, "b")])
    with pytest.raises(AccessDenied):
        await log.consume("engines", f"slime.{RUN}.>")
    await log.close()
    await roles.close()


async def test_credentials_are_private_and_stay(server: NatsServer, tmp_path: Path) -> None:
    private = [*(file_of(server.folder, access) for access in Access), server.folder / "nats.conf"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * 5
    before = {access: server.address(access).password for access in Access}
    assert len({*before.values()}) == 4
    for access, password in before.items():
        address = server.address(access)
        assert password not in f"{address} {address!r}"
        assert pickle.loads(pickle.dumps(address)) == address, "Ray takes it to other machines"
    assert json.loads(file_of(server.folder, Access.PRODUCER).read_text())["url"] == server.url
    guard(server.folder, RUN)
    await server.stop()
    async with open_run_log(tmp_path / RUN, RUN) as log:
        assert await log.position() == 1
        again = NatsServer.attach(server.folder)
        assert again is not None
        assert {access: again.address(access).password for access in Access} == before


async def test_a_folder_without_credentials_gets_them_with_its_streams(tmp_path: Path) -> None:
    """A run of an older version is read, then resumed while its old server is still alive."""
    async with await NatsServer.start(tmp_path / RUN / "nats") as old:
        log = await JetStreamLog.open(old.url, RUN)
        await log.append([reward(log, "a")])
        await (await log.consume("engines", f"slime.{RUN}.>")).close()
        await log.close()
        async with open_run_log(tmp_path / RUN, RUN) as log:
            assert await log.position() == 1
        async with await own_server(tmp_path / RUN, RUN) as server:
            assert not old.alive
            with pytest.raises(AccessDenied, match="does not accept these credentials"):
                await JetStreamLog.open(server.url, RUN)
            log = await JetStreamLog.open(server.address(Access.ROLES), RUN, create=False)
            assert await log.position() == 1
            assert await log.done_up_to("engines") == 0
            await log.close()


async def test_whoever_looks_at_a_run_that_is_on_can_only_read(server: NatsServer) -> None:
    async with open_run_log(server.folder.parent, RUN) as log:
        assert log.connection.reads_only
    await server.stop()
    async with open_run_log(server.folder.parent, RUN) as log:
        assert not log.connection.reads_only, "it is over, and nobody else is there"
