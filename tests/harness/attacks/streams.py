"""C19: the event stream of a token that is revoked while it is read; many streams of one token."""

from __future__ import annotations

import asyncio
import time

import httpx

from tests.harness.attacks.attack import Answer, Attack
from tests.harness.attacks.scene import Scene

ENDS_S = 30.0
WAITING = 300
"""Prompts: more than the run takes meanwhile."""


def _client(scene: Scene) -> httpx.AsyncClient:
    """Return a client for any number of streams."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=scene.url, timeout=ENDS_S * 2, limits=limits)


async def _stream_of(client: httpx.AsyncClient, scene: Scene, token: str, group: str) -> tuple[int, float]:
    """Read a stream; return its status, and the seconds until it ends."""
    began = time.monotonic()
    path = f"/v1/runs/{scene.run}/groups/{group}/events"
    headers = {"authorization": f"Bearer {token}"}
    async with client.stream("GET", path, headers=headers) as answer:
        async for _ in answer.aiter_bytes():
            pass
    return answer.status_code, time.monotonic() - began


async def revoked(scene: Scene) -> Answer:
    """The stream of the last of many prompts, which waits for its turn, and then no token any more."""
    headers = {"authorization": f"Bearer {scene.sources.issue('leaver')}", "content-type": "application/json"}
    body = [{"key": f"open-{number}", "prompt": "1+1"} for number in range(WAITING)]
    sent = await scene.http.post(f"/v1/runs/{scene.run}/prompts", json=body, headers=headers)
    group = sent.json()["groups"][-1]["group"]
    client, token = _client(scene), headers["authorization"].split()[1]
    reading = asyncio.ensure_future(_stream_of(client, scene, token, group))
    await asyncio.sleep(2)
    scene.sources.revoke("leaver")
    try:
        status, seconds = await asyncio.wait_for(reading, ENDS_S)
    except TimeoutError:
        return Answer(f"the stream is open {ENDS_S:.0f} s later", False)
    path = f"/v1/runs/{scene.run}/groups/{group}"
    refused = (await scene.http.get(path, headers=headers)).status_code
    again = {"authorization": f"Bearer {scene.sources.issue('leaver')}"}
    fate = (await scene.http.get(path, headers=again)).json().get("fate")
    text = f"{status}, ended after {seconds:.0f} s while {fate}; then {refused}"
    return Answer(text, refused == 401 and fate == "waiting")


async def many(scene: Scene) -> Answer:
    """300 streams of one token: others are answered."""
    sent = await scene.post("prompts", {"key": "watched", "prompt": "1+1", "priority": -100})
    group = sent.json()["groups"][0]["group"]
    client = _client(scene)
    reading = [asyncio.ensure_future(_stream_of(client, scene, scene.token, group)) for _ in range(300)]
    await asyncio.sleep(3)
    answer = await scene.http.get("/healthz")
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    await client.aclose()
    return Answer(f"another hears {answer.status_code}", answer.status_code == 200)


ATTACKS: list[Attack] = [
    Attack("a token revoked while its stream is read", "events", "the stream ends", revoked, 90.0),
    Attack("300 streams of one token", "events", "others are answered", many),
]
