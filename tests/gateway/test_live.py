"""The command in a process of its own, beside a run: killed in mid-request, and after the run's end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from schemas.prompts import PromptSubmitted
from serve_apps.http.gateway.sources import Sources
from storage.nats.ports import free_port
from tests.cli.invoke import command
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import Watching, events_of, of, run_with, tiny
from tests.scripted_engine import Script

RUN = "live"
ANSWER_S = 60.0


@contextmanager
def gateway(run: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The command, until it is killed."""
    words = [sys.executable, "-m", "slime_events.app.cli.main", "gateway", str(run), "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


async def until_answered(client: httpx.AsyncClient, method: str, path: str, **request: object) -> httpx.Response:
    """Retry like a client that follows the docs, until the answer says what became of the request."""
    async with asyncio.timeout(ANSWER_S):
        while True:
            try:
                answer = await client.request(method, path, **request)  # type: ignore[arg-type]
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code not in (429, 503):
                return answer
            await asyncio.sleep(0.1)


def lines(batch: int) -> str:
    prompts = ({"key": f"{batch}-{n}", "prompt": f"{n}+{batch}", "label": str(n + batch)} for n in range(20))
    return "".join(json.dumps(prompt) + "\n" for prompt in prompts)


async def send_and_kill(run: Path, client: httpx.AsyncClient, port: int, kills: int) -> dict[str, str]:
    """Groups by key, of all answers. Each gateway but the last is killed while a request is under way."""
    groups: dict[str, str] = {}
    for batch in range(kills + 1):
        sending = asyncio.ensure_future(
            until_answered(
                client,
                "POST",
                f"/v1/runs/{RUN}/prompts",
                content=lines(batch),
                headers={"content-type": "application/x-ndjson"},
            )
        )
        with gateway(run, port) as process:
            await until_answered(client, "GET", "/healthz")
            if batch < kills:
                process.kill()
        with gateway(run, port):
            answer = await sending
        assert answer.status_code == 202, answer.text
        groups |= {taken["key"]: taken["group"] for taken in answer.json()["groups"]}
    return groups


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_what_was_answered_survives_the_gateway(tmp_path: Path, capsys: pytest.CaptureFixture[str], kills: int) -> None:
    run, port = tmp_path / "runs" / RUN, free_port()
    groups: dict[str, str] = {}

    async def produce(view: Watching) -> None:
        await view.until(lambda progress: progress.state.version >= 0)
        token = Sources(run).issue("quiz")
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=ANSWER_S) as client:
            groups.update(await send_and_kill(run, client, port, kills))
        os.kill(os.getpid(), signal.SIGTERM)

    slow = Script(chunk=4, seconds_per_chunk=0.2)  # the run lasts as long as the gateways: it need not make many steps
    with cheap_parts(Parts(script=slow)):
        asyncio.run(run_with(tiny(tmp_path, RUN, rollout={"num_rollout": 100_000}), produce))
    taken = [event for event in of(events_of(run), PromptSubmitted) if event.dataset == "inbox"]
    assert {event.source.key: event.group for event in taken} == groups
    assert len(taken) == len(groups) == 20 * (kills + 1), "none is lost, and none is there twice"
    assert {event.source.sender for event in taken} == {"quiz"}
    asyncio.run(_after_the_end(run, port, groups["0-0"]))
    assert command("gateway")([RUN, "--runs-dir", str(tmp_path / "runs"), "--sources"]) == 0
    assert capsys.readouterr().out.endswith("quiz\n")


async def _after_the_end(run: Path, port: int, group: str) -> None:
    """Answer what became of a prompt; let a new one wait for the run to be resumed."""
    token = Sources(run).issue("quiz")
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=ANSWER_S) as client:
        with gateway(run, port):
            reply = await until_answered(client, "GET", f"/v1/runs/{RUN}/groups/{group}")
            late = await client.post(f"/v1/runs/{RUN}/prompts", json={"prompt": "late", "label": "1"})
            again = await client.post(f"/v1/runs/{RUN}/prompts", json={"prompt": "late", "label": "1"})
            (taken,) = late.json()["groups"]
            waits = await client.get(f"/v1/runs/{RUN}/groups/{taken['group']}")
    assert (reply.status_code, reply.json()["key"]) == (200, "0-0")
    assert (late.status_code, late.json()) == (202, again.json())
    assert waits.json()["fate"] == "waiting"
