"""Hundreds of appends under way on one stream: ours refuses none; what another server refuses is counted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import nats
import pytest

from schemas.codec import encode
from schemas.errors import LogUnavailable
from slime_events.app.cli.checks import Outcome
from slime_events.app.cli.nats_access import check_batches
from slime_events.core.telemetry.telemetry import Telemetry, TracedLog
from storage.jetstream.address import NatsPlace
from storage.jetstream.append import BATCH_COMMIT, BATCH_ID, BATCH_SEQUENCE
from storage.jetstream.error_codes import TOO_MANY_BATCHES
from storage.jetstream.log import JetStreamLog
from storage.jetstream.retry import TooManyBatches, json_answer
from storage.log import CountsRefusals
from storage.nats import folder
from storage.nats import server as nats_server
from storage.nats.server import NatsServer
from tests.storage.log.appends import reward

AT_ONCE = 200
BY_DEFAULT = 50
"""Of a server whose configuration says nothing of it."""
MANY = 65
"""Events of a batch that is not sent in one go: others open theirs before it is committed."""


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers get a configuration without limits of batches, as one of the user's own may have."""
    ours = folder.config_text

    def text(*args: object, **more: object) -> str:
        lines = ours(*args, **more).splitlines()  # type: ignore[arg-type]
        left = [line for line in lines if "limits {" not in line]
        assert len(left) == len(lines) - 1
        return "\n".join(left)

    monkeypatch.setattr(nats_server, "config_text", text)


async def open_at_once(server: NatsServer, log: JetStreamLog, count: int) -> list[dict[str, object]]:
    """Answers to `count` batches that are all open before the first is committed."""
    client = await nats.connect(server.url)
    first = [reward(log, f"a{number}").envelope for number in range(count)]
    last = [reward(log, f"b{number}").envelope for number in range(count)]
    for number, envelope in enumerate(first):
        headers = {BATCH_ID: str(number), BATCH_SEQUENCE: "1"}
        await client.publish(envelope.subject, encode(envelope), headers=headers)
    await client.flush()

    async def commit(number: int) -> dict[str, object]:
        headers = {BATCH_ID: str(number), BATCH_SEQUENCE: "2", BATCH_COMMIT: "1"}
        envelope = last[number]
        answer = await client.request(envelope.subject, encode(envelope), headers=headers, timeout=10)
        reply: dict[str, object] = json.loads(answer.data)
        return reply

    answers = await asyncio.gather(*map(commit, range(count)))
    await client.close()
    return answers


async def test_two_hundred_batches_are_open_at_once(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path) as server:
        log = await JetStreamLog.open(server.url, "r")
        answers = await open_at_once(server, log, AT_ONCE)
        assert [answer.get("error") for answer in answers] == [None] * AT_ONCE
        assert {answer.get("count") for answer in answers} == {2}
        await log.close()


async def test_a_server_that_takes_few_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner reads which of its settings is too small."""
    monkeypatch.setattr(folder, "OPEN_BATCHES", 1)
    async with await NatsServer.start(tmp_path) as server:
        log = await JetStreamLog.open(server.url, "r", retry_s=0.2)
        client = await nats.connect(server.url)

        async def append_beside_another() -> None:
            """The server may take an append before it has opened the other batch, so there are several."""
            for number in range(20):
                envelope = reward(log, f"a{number}").envelope
                headers = {BATCH_ID: f"x{number}", BATCH_SEQUENCE: "1"}  # stays open until the server gives up on it
                await client.publish(envelope.subject, encode(envelope), headers=headers)
                await client.flush()
                await log.append([reward(log, f"b{number}"), reward(log, f"c{number}")])

        with pytest.raises(LogUnavailable, match="max_inflight_per_stream"):
            await append_beside_another()
        await client.close()
        await log.close()


async def append_at_once(server: NatsServer, appenders: int) -> int:
    """Appenders that open their batches at the same time; how many batches had to be sent again."""
    log = await JetStreamLog.open(server.url, "r")
    names = [[f"{number}-{index}" for index in range(MANY)] for number in range(appenders)]
    positions = await asyncio.gather(*(log.append([reward(log, name) for name in batch]) for batch in names))
    assert sorted(position for batch in positions for position in batch) == list(range(1, appenders * MANY + 1))
    traced = TracedLog(log, Telemetry(None, 0.0))
    assert isinstance(traced, CountsRefusals)
    await log.close()
    return traced.refused_batches()


async def test_two_hundred_appenders_and_no_refused_batch(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path) as server:
        assert await append_at_once(server, AT_ONCE) == 0


@pytest.mark.usefixtures("plain")
async def test_what_a_plain_server_refuses_is_stored_in_the_end_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with await NatsServer.start(tmp_path) as server:
        assert await append_at_once(server, AT_ONCE) >= AT_ONCE - BY_DEFAULT
    firsts = [record for record in caplog.records if record.getMessage().startswith("NATS refused append 1,")]
    assert len(firsts) == 1
    assert "max_inflight_per_stream" in firsts[0].getMessage()


async def test_doctor_counts_what_ours_takes(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path) as server:
        check = await asyncio.to_thread(check_batches, NatsPlace(url=server.url))
        assert check.outcome is Outcome.OK
        assert await streams(server) == 0


@pytest.mark.usefixtures("plain")
async def test_doctor_counts_what_a_plain_one_takes_and_says_what_to_set(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path) as server:
        check = await asyncio.to_thread(check_batches, NatsPlace(url=server.url))
        assert check.outcome is Outcome.WARN
        assert f" {BY_DEFAULT} " in check.detail
        assert "max_inflight_per_stream" in check.mend
        assert await streams(server) == 0, "doctor's own is removed"


async def test_doctor_cannot_see_it_without_the_right_to_make_a_stream(tmp_path: Path) -> None:
    viewer = 'authorization { users: [{ user: "me", password: "pw", permissions: { publish: "nothing" } }] }'
    (tmp_path / "creds").write_text('{"user": "me", "password": "pw"}')
    async with await NatsServer.start(tmp_path / "nats", more=viewer) as server:
        place = NatsPlace(url=server.url, creds=str(tmp_path / "creds"))
        check = await asyncio.to_thread(check_batches, place)
    assert check.outcome is Outcome.WARN
    assert "unknown how many" in check.detail


async def streams(server: NatsServer) -> int:
    client = await nats.connect(server.url)
    count = int((await client.jetstream().account_info()).streams)
    await client.close()
    return count


@pytest.mark.parametrize("code", sorted(TOO_MANY_BATCHES))
def test_a_server_that_names_too_many_batches_is_understood(code: int) -> None:
    """Older servers drop the first part of a batch (10176), newer ones say why (10210)."""
    answer = {"error": {"code": 429, "err_code": int(code), "description": "batch"}}
    with pytest.raises(TooManyBatches):
        json_answer(json.dumps(answer).encode())
