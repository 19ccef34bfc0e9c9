"""Hundreds of appends under way on one stream: the server refuses none of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import nats
import pytest

from schemas.codec import encode
from schemas.errors import LogUnavailable
from storage.jetstream.append import BATCH_COMMIT, BATCH_ID, BATCH_SEQUENCE
from storage.jetstream.log import JetStreamLog
from storage.nats import folder
from storage.nats.server import NatsServer
from tests.storage.log.appends import reward

AT_ONCE = 200


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
        told: dict[str, object] = json.loads(answer.data)
        return told

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
        for number in range(3):  # they stay open until the server gives up on them
            envelope = reward(log, f"a{number}").envelope
            await client.publish(envelope.subject, encode(envelope), headers={BATCH_ID: "x", BATCH_SEQUENCE: "1"})
        await client.flush()
        with pytest.raises(LogUnavailable, match="max_inflight_per_stream"):
            await log.append([reward(log, "b1"), reward(log, "b2")])
        await client.close()
        await log.close()
