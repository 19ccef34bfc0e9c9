"""The gateway's routes over a log in memory, and nobody else of a run: what others would append, a test appends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from schemas.commands import CommandDone, CommandGiven
from schemas.event import Event
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutRequested
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Sources
from serve_apps.http.tinker.answers import Answers
from serve_apps.http.tinker.app import tinker_app
from serve_apps.http.tinker.calls import Calls, Served
from slime_events.core.run.participant import Participant
from storage.blobs import BlobStore
from storage.log import Append
from storage.memory_log import MemoryLog
from storage.payloads import fetch
from tests import made

SESSION = "tinker-0123456789abcdef"
MODEL, MODEL_ID = f"{SESSION}-m0", f"{SESSION}:train:0"
SERVED = Served("/models/tiny", "tiny", "Tiny", vocabulary=300, longest=64, first=2, seed=7)
URL = "http://127.0.0.1:8500"


class Lone:
    """attempts: of a generation. settings: of the gateway."""

    def __init__(self, folder: Path, *, attempts: int = 2, **settings: Any) -> None:
        self.log, self.blobs = MemoryLog("sim"), BlobStore(str(folder / "blobs"))
        self.worker, self.other = Participant(self.log, "tinker"), Participant(self.log, "other")
        self.sources = Sources(folder)
        self.answers = Answers(self.worker, lambda array: fetch(array, blobs=self.blobs), attempts=attempts)
        self.calls = Calls(self.worker, SERVED, self.answers, self.blobs)
        self.app = tinker_app(self.calls, self.sources, GatewaySettings(**settings))
        self.key = f"tml-{self.sources.issue('test')}"

    def client(self, **headers: str) -> httpx.AsyncClient:
        all_headers = {"x-api-key": self.key} | headers
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=f"{URL}/api/v1", headers=all_headers)

    async def post(self, route: str, body: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.post(f"/{route}", json=body)

    async def say(self, *events: Event) -> None:
        """Append like another process of the run, whatever the log holds already."""
        for event in events:
            await self.log.append([Append(self.other.enclose(event))])

    async def events(self, kind: type[Event]) -> list[Any]:
        recorded_events = [recorded.envelope.event async for recorded in self.log.read(1)]
        return [event for event in recorded_events if isinstance(event, kind)]

    async def begin(self, **done: Any) -> None:
        """The model is there."""
        await self.post("create_model", {"session_id": SESSION, "model_seq_id": 0, "base_model": "tiny"})
        await self.say(CommandDone(command=f"{MODEL}-000000", version=2, **done))

    async def last(self) -> CommandGiven:
        return (await self.events(CommandGiven))[-1]  # type: ignore[no-any-return]


def requested(sample: str, **more: Any) -> RolloutRequested:
    return made.requested(sample, [65, 66, 67], max_new_tokens=4, **more)


def completed(sample: str, tokens: Sequence[int] = (5, 6), **more: Any) -> RolloutCompleted:
    return made.completed(sample, list(tokens), prompt_length=3, log_probs=[-0.5] * len(tokens), **more)


def failed(sample: str, kind: FailureKind, attempt: int = 0) -> RolloutFailed:
    return made.failed(sample, kind, attempt=attempt, message="no")
