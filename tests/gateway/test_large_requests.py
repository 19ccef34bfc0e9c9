"""Large requests: refused before they are read where the context has no room for them, and others wait for none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from serve_apps.rollouts.agents.dialects import PATHS
from serve_apps.rollouts.agents.reading import Requests
from tests.agents.stage import ASKED, RULES, Stage, ask
from tests.scripted_engine import Script

MB = 1024 * 1024
LONGEST_S = 3.0
"""Of a standstill of the loop, on a machine that has much else to do; on a quiet one it is some hundredths."""
TEXT = "the quick brown fox jumps over the lazy dog. "


@contextlib.asynccontextmanager
async def no_standstill() -> AsyncIterator[None]:
    """Fails where the loop was held for long."""
    longest = 0.0

    async def look() -> None:
        nonlocal longest
        while True:
            begin = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - begin)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
    assert longest < LONGEST_S


@contextlib.asynccontextmanager
async def peak_memory() -> AsyncIterator[list[int]]:
    """Resident bytes of this process, from time to time."""
    seen = [psutil.Process().memory_info().rss]

    async def look() -> None:
        while True:
            seen.append(psutil.Process().memory_info().rss)
            await asyncio.sleep(0.005)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()


def body_of(dialect: str, text: str) -> dict[str, Any]:
    """A request of each dialect."""
    if dialect.endswith("generate"):
        return {"text": text}
    if dialect.endswith("responses"):
        return {"model": "m", "input": text}
    return {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize("path", [*PATHS, "/v1/messages/count_tokens"])
async def test_what_the_context_has_no_room_for_is_not_read(tmp_path: Path, path: str) -> None:
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine()
        session = await stage.open(client)
        large = json.dumps(body_of(path, "x" * (30 * MB))).encode()

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(large), 65536):
                yield large[at : at + 65536]

        headers = {"authorization": f"Bearer {session['agent_key']}", "content-type": "application/json"}
        tracemalloc.start()
        async with no_standstill():
            refused = await client.post(path, content=large, headers=headers)
            streamed = await client.post(path, content=pieces(), headers=headers)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (refused.status_code, streamed.status_code) == (413, 413)
        assert "limited to" in refused.text
        assert most < 16 * MB
        assert RULES.most_bytes < 2 * MB


@pytest.mark.parametrize("path", PATHS)
async def test_a_large_request_holds_nobody_up(tmp_path: Path, path: str) -> None:
    """It is within the bytes, and too long in tokens."""
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine()
        session = await stage.open(client)
        headers = {"authorization": f"Bearer {session['agent_key']}"}
        body = body_of(path, TEXT * (MB // len(TEXT)))
        async with no_standstill():
            answer = await client.post(path, json=body, headers=headers)
        assert answer.status_code == 400
        assert "tokens" in answer.text


@pytest.mark.parametrize("path", PATHS)
async def test_a_text_that_is_far_too_long_is_not_tokenised_whole(tmp_path: Path, path: str) -> None:
    """One word of a megabyte: to tokenise it whole takes 150 times as much memory."""
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine()
        session = await stage.open(client)
        headers = {"authorization": f"Bearer {session['agent_key']}"}
        before = psutil.Process().memory_info().rss
        async with peak_memory() as peak:
            answers = [await client.post(path, json=body_of(path, "x" * MB), headers=headers) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [400, 400]
        assert max(peak) - before < 100 * MB


async def test_many_messages_are_refused_before_they_are_rendered(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine()
        session = await stage.open(client)
        body = {"model": "m", "messages": [{"role": "user", "content": ""}] * 20_000}
        async with no_standstill():
            answer = await client.post(f"{session['base_url']}/chat/completions", json=body)
        assert answer.status_code == 400
        assert "messages" in answer.text


async def test_a_large_conversation_goes_on_where_it_was(tmp_path: Path) -> None:
    """In a thread as on the loop: the next turn extends the one before."""
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway(context=200_000, tokens_in_flight=10**9) as client:
        stage.simulation.start_engine(Script(chunk=8))
        session = await stage.open(client)
        chat_ = [{"role": "user", "content": TEXT * 2000}, *ASKED]
        answered = [*chat_, await ask(client, session, chat_)]
        await ask(client, session, [*answered, {"role": "user", "content": "and now?"}])
        turns = stage.check_turns()
        assert [turn.extends for turn in turns] == [None, 0]
        assert len(json.dumps(chat_)) > 32 * 1024


async def test_requests_that_are_read_at_once_are_each_read_right() -> None:
    dialect, requests = PATHS["/v1/chat/completions"], Requests()
    bodies = [json.dumps(body_of("chat", f"{at} " + TEXT * 1000)).encode() for at in range(8)]
    read = await asyncio.gather(*(requests.read_off_loop(dialect, "/", body) for body in bodies * 2))
    alone = [Requests().read(dialect, "/", body) for body in bodies]
    assert [digest for _, digest in read] == [digest for _, digest in alone] * 2
    assert [one_request.messages for one_request, _ in read] == [one_request.messages for one_request, _ in alone] * 2


def test_bytes_are_bounded_by_the_context() -> None:
    assert replace(RULES, context=100_000).most_bytes > 3 * replace(RULES, context=1000).most_bytes
    assert replace(RULES, context=None).most_bytes < 16 * MB


async def test_a_seal_with_much_metadata_is_refused(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine()
        session = await stage.open(client)
        headers = {"authorization": f"Bearer {session['control_key']}"}
        body = {"reward": 1.0, "metadata": {"log": "x" * (4 * MB)}}
        answer = await client.post(f"/v1/sessions/{session['session']}/seal", json=body, headers=headers)
        assert answer.status_code == 413
