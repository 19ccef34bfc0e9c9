"""Agents of a run with a real NATS server and a gateway in a process of its own, which is killed again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from schemas.rollouts import RolloutCompleted
from schemas.turns import TurnRecorded
from serve_apps.http.gateway.sources import Sources
from storage.nats.ports import free_port
from tests.agents.stage import digest_of
from tests.cli.invoke import command
from tests.gateway.test_live import gateway
from tests.run.cheap import LocalCluster, Parts, cheap_parts, lose
from tests.run.tiny import Watching, events_of, of, run_with, tiny
from tests.scripted_engine import Script

RUN, STEPS, GROUPS, SAMPLES = "agents", 2, 2, 2
KILLS = 2
ANSWER_S = 60.0


class Harness:
    """Opens sessions, and has in each an agent ask twice: with the SDK, streamed, or with plain HTTP."""

    def __init__(self, run: Path, port: int) -> None:
        self._token, self._url = Sources(run).issue("team"), f"http://127.0.0.1:{port}"
        self.sealed, self._moved = 0, asyncio.Event()
        self.failures: list[str] = []

    async def until(self, sealed: int) -> None:
        """Wait for `count` sessions."""
        while self.sealed < sealed:
            self._moved.clear()
            await self._moved.wait()

    async def work(self, number: int) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=ANSWER_S) as client:
            while True:
                opened = await self._patient(client, f"/v1/runs/{RUN}/sessions", {"wait_s": 10}, self._token)
                if opened.status_code == 409:
                    return
                assert opened.status_code == 201, opened.text
                session = opened.json()
                agent = self._with_sdk if number % 2 else self._with_http
                await agent(session, client)
                where, key = f"/v1/sessions/{session['session']}/seal", session["control_key"]
                sealed = await self._patient(client, where, {"reward": float(number % 3)}, key)
                if sealed.status_code == 200:
                    self.sealed += 1
                    self._moved.set()
                else:
                    self.failures.append(sealed.text)

    async def _patient(self, client: httpx.AsyncClient, path: str, body: Any, key: str) -> httpx.Response:
        """Retry as the docs advise: after 429 and 503, and after a connection error."""
        headers = {"authorization": f"Bearer {key}", "x-stainless-retry-count": "1"}
        async with asyncio.timeout(ANSWER_S):
            while True:
                try:
                    answer = await client.post(path, json=body, headers=headers)
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
                    continue
                if answer.status_code not in (429, 503):
                    return answer
                await asyncio.sleep(0.05)

    async def _with_http(self, session: dict[str, Any], client: httpx.AsyncClient) -> None:
        chat: list[Any] = [
            {"role": "user", "content": session["prompt"] if isinstance(session["prompt"], str) else "?"}
        ]
        for _ in range(2):
            body = {"model": "m", "messages": chat, "max_tokens": 8}
            path = f"{session['base_url']}/chat/completions"
            answer = await self._patient(client, path, body, session["agent_key"])
            if answer.status_code != 200:
                self.failures.append(answer.text)
                return
            chat += [answer.json()["choices"][0]["message"], {"role": "user", "content": "sure?"}]

    async def _with_sdk(self, session: dict[str, Any], _: httpx.AsyncClient) -> None:
        agent = openai.AsyncOpenAI(base_url=session["base_url"], api_key="none", max_retries=20)
        chat: list[Any] = [{"role": "user", "content": "hello"}]
        for _turn in range(2):
            reply = await self._streamed(agent, chat)
            chat += [{"role": "assistant", "content": reply}, {"role": "user", "content": "continue"}]
        await agent.close()

    async def _streamed(self, agent: openai.AsyncOpenAI, chat: list[Any]) -> str:
        """A stream that broke is asked for again, as an agent's author does it: without a mark."""
        while True:
            try:
                text = ""
                async for chunk in await agent.chat.completions.create(
                    model="m", messages=chat, max_tokens=8, stream=True
                ):
                    if chunk.choices:
                        text += chunk.choices[0].delta.content or ""
                return text
            except (httpx.TransportError, openai.APIConnectionError):
                await asyncio.sleep(0.05)


async def killed_often(run: Path, port: int, times: int, every_s: float) -> None:
    """A gateway, and another after each kill -9."""
    for number in range(times + 1):
        with gateway(run, port) as process:
            await asyncio.sleep(every_s if number < times else 1e9)
            process.kill()


@pytest.mark.parametrize("lost", ["gateway", "conductor"])
def test_agents_train_whoever_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: str) -> None:
    """In the second run events leave the log meanwhile."""
    run, port = tmp_path / "runs" / RUN, free_port()
    rollout = {
        "num_rollout": STEPS,
        "rollout_batch_size": GROUPS,
        "n_samples_per_prompt": SAMPLES,
        "agents": True,
        "max_staleness": 1,
        "rollout_max_response_len": 8,
    }
    kept = {"log_keep_steps": 1, "archive_url": str(tmp_path / "archive"), "archive_seconds": 0.5}
    own_run = kept if lost == "conductor" else {}
    clusters: list[LocalCluster] = []
    harnesses: list[Harness] = []

    async def work(view: Watching) -> None:
        await view.until(lambda progress: progress.state.version >= 0)
        harness = Harness(run, port)
        harnesses.append(harness)
        kills, every_s = (KILLS, 3.0) if lost == "gateway" else (0, 0.0)
        serving = asyncio.create_task(killed_often(run, port, kills, every_s))
        try:
            async with asyncio.TaskGroup() as group:
                workers = [group.create_task(harness.work(number)) for number in range(4)]
                if lost == "conductor":
                    group.create_task(_lose_conductors(clusters, harness))
                group.create_task(_ended(view, workers))
        finally:
            serving.cancel()

    with cheap_parts(Parts(script=Script(chunk=2, seconds_per_chunk=0.05))), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.run.cheap.LocalCluster.start", lambda cluster: clusters.append(cluster))
        asyncio.run(run_with(tiny(tmp_path, RUN, rollout=rollout, run=own_run), work))
    events = events_of(run)
    completed = {event.sample: event for event in of(events, RolloutCompleted)}
    turns = of(events, TurnRecorded)
    assert len(turns) >= 2 * STEPS * GROUPS * SAMPLES
    for turn in turns:
        assert turn.agent is not None
        assert digest_of(turn) == completed[turn.agent.call].digest
    assert not harnesses[0].failures
    assert command("audit")([str(run)]) == 0, capsys.readouterr().out


async def _lose_conductors(clusters: list[LocalCluster], harness: Harness) -> None:
    for sealed in (2, 5):
        await harness.until(sealed)
        lose(clusters[-1], "conductor")


async def _ended(view: Watching, workers: list[asyncio.Task[None]]) -> None:
    """Return whether it ended with the run, whatever a worker waits for."""
    await view.until(lambda progress: progress.state.version >= STEPS)
    await asyncio.sleep(0.5)
    for worker in workers:
        worker.cancel()
