"""The run that the tests of this folder look at: started once, by the first that asks for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest

from schemas.runs import RunFinished
from slime_events.core.config.settings import TrainSettings
from storage.log import Recorded
from tests.run.tiny import MARK, Watching, events_of, left_behind, run_with, tiny

STEPS = 4
REPLY_S = 120.0
"""The first message waits until the inbox has loaded the tokenizer: over 20 s where three suites and mypy begin."""
LESSON = {"3+4-5-1": "1", "9-2-3+4": "8", "1+1+1+1": "4", "8-7+6-5": "2", "5+4-9+3": "3", "7-1-1-1": "4"}
"""Questions of a producer outside, with their answers; each question is its own key."""
GRADER = """
async def reward_func(args, sample, **kwargs):
    text = sample.response.removesuffix("<|im_end|>").strip()
    return {"score": float(text.endswith(sample.label)), "length": len(text)}
"""


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that is over, and what is known of it."""

    folder: Path
    summary: dict[str, Any]
    events: list[Recorded]
    view: Watching
    reply: dict[str, Any]
    left: list[str]


def whole_settings(folder: Path, run: str, steps: int, chunk_tokens: int) -> TrainSettings:
    """A user's own grader, dynamic sampling, staleness 0."""
    folder.mkdir(exist_ok=True)
    (folder / "my_reward.py").write_text(GRADER)
    return tiny(
        folder,
        run,
        rollout={
            "num_rollout": steps,
            "dynamic_sampling_filter_path": "slime_events.plugins.filters.dynamic_sampling:check_reward_nonzero_std",
        },
        reward={"rm_type": None, "custom_rm_path": str(folder / "my_reward.py"), "reward_key": "score"},
        engine={"chunk_tokens": chunk_tokens},
    )


def finish(folder: Path) -> Finished:
    """Run it to its end, with a producer outside."""
    settings = whole_settings(folder, "whole", STEPS, chunk_tokens=8)
    replies: list[dict[str, Any]] = []

    async def produce(view: Watching) -> None:
        """Once step 1 is sealed: its groups are chosen, those of step 2 are not, since the trainer pauses meanwhile."""
        await view.until(lambda progress: progress.state.version >= 1)
        trainer = view.pid_of("trainer")
        os.kill(trainer, signal.SIGSTOP)
        try:
            await view.until(lambda progress: progress.state.next_step >= 2)
            replies.append(await publish(run))
        finally:
            os.kill(trainer, signal.SIGCONT)

    run = folder / "runs" / "whole"
    view, mark = Watching(), uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        summary = asyncio.run(run_with(settings, produce, view=view))
        left = left_behind(mark)
    return Finished(run, summary, _up_to_the_end(events_of(run)), view, replies[0], left)


def _up_to_the_end(events: list[Recorded]) -> list[Recorded]:
    """On a busy machine an engine says only after it that it has loaded the last weights."""
    end = next(n for n, recorded in enumerate(events, 1) if isinstance(recorded.envelope.event, RunFinished))
    return events[:end]


async def publish(run: Path) -> dict[str, Any]:
    """Publish with what a producer outside needs: one file of the run's folder, NATS and JSON, nothing of
    this project.
    """
    access = json.loads((run / "nats" / "producer.json").read_text())
    client = await nats.connect(access["url"], user=access["user"], password=access["password"])
    prompts = [{"key": q, "prompt": [{"role": "user", "content": q}], "label": label} for q, label in LESSON.items()]
    answer = await client.request(f"slime.{access['run']}.inbox.prompts", json.dumps(prompts).encode(), REPLY_S)
    await client.close()
    reply: dict[str, Any] = json.loads(answer.data)
    return reply
