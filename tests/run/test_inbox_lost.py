"""A producer whose prompts a run takes in while one of its processes dies."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest

from schemas.groups import GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.steps import StepCommitted
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.core.training.train_batch import StepResult, TrainBatch
from tests.run.cheap import CountingRanks, LocalCluster, Parts, cheap_parts, lose
from tests.run.tiny import Watching, events_of, of, run_with, tiny

MESSAGES, PROMPTS = 40, 5
ANSWER_S = 2.0


@dataclass(slots=True)
class Waiting(CountingRanks):
    """Trains once the producer is done."""

    is_sent: asyncio.Event = field(default_factory=asyncio.Event)

    async def train(self, batch: TrainBatch) -> StepResult:
        await self.is_sent.wait()
        return await CountingRanks.train(self, batch)


async def send(access: dict[str, Any], number: int) -> int:
    """One message until it is accepted; how often it was sent."""
    prompts = [{"key": f"{number}-{n}", "prompt": f"{number}+{n}", "label": str(number + n)} for n in range(PROMPTS)]
    client = await nats.connect(access["url"], user=access["user"], password=access["password"])
    try:
        for tries in range(1, 1000):
            try:
                subject = f"slime.{access['run']}.inbox.prompts"
                reply = await client.request(subject, json.dumps(prompts).encode(), timeout=ANSWER_S)
                if json.loads(reply.data)["accepted"]:
                    return tries
            except (nats.errors.NoRespondersError, TimeoutError):
                await asyncio.sleep(0.05)
        raise TimeoutError
    finally:
        await client.close()


@pytest.mark.parametrize("role", ["inbox", "conductor"])
def test_every_prompt_is_taken_in_once_whoever_dies(tmp_path: Path, clusters: list[LocalCluster], role: str) -> None:
    ranks, tries = Waiting(), list[int]()

    async def produce(view: Watching) -> None:
        await view.until(lambda progress: any(worker.role == "inbox" for worker in progress.figures.workers))
        access = json.loads((tmp_path / "runs" / "flooded" / "nats" / "producer.json").read_text())
        for number in range(MESSAGES):
            if number == MESSAGES // 2:
                lose(clusters[-1], role)
            tries.append(await send(access, number))
        ranks.is_sent.set()

    with cheap_parts(Parts(ranks=ranks)):
        asyncio.run(run_with(tiny(tmp_path, "flooded", rollout={"num_rollout": 2}), produce))
    if role == "conductor":
        assert set(tries) == {1}, "the inbox is a process of its own"
    else:
        assert max(tries) > 1, "nobody took prompts for a while, and the producer got a message"
    events = events_of(tmp_path / "runs" / "flooded")
    assert [event.role for event in of(events, WorkerLost)] == [role]
    assert Counter(event.role for event in of(events, WorkerJoined))[role] == 2
    keys = Counter(event.source.key for event in of(events, PromptSubmitted) if event.dataset == "inbox")
    assert keys == Counter(f"{number}-{n}" for number in range(MESSAGES) for n in range(PROMPTS))
    assert len(of(events, StepCommitted)) == 2
    assert not of(events, GroupRejected)
