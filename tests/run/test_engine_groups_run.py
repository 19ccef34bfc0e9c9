"""A real run with two groups of engines and a frozen model that its reward function asks."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from schemas.arrays import unpack
from schemas.placements import PlacementPlanned
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from schemas.weights import WeightsActivated
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.app.cli.main import main
from slime_events.core.config.engine_groups import ServedModel, ServerGroup
from storage.log import Recorded
from tests.run.tiny import START_S, Watching, events_of, of, run_with, tiny

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(1800)]

COMPARED = 24
"""Rewards that are computed again, by another library."""


def test_two_groups_make_rollouts_and_a_frozen_model_grades_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tiny(tmp_path, "groups")
    checkpoint = tmp_path / "judge"
    _other_weights(base.engine.hf_checkpoint, checkpoint)
    models = {
        "actor": ServedModel(
            server_groups=[
                ServerGroup(num_gpus=1, overrides={"max_running_requests": 4}),
                ServerGroup(num_gpus=1, overrides={"context_length": 512}),
            ]
        ),
        "judge": ServedModel(model_path=str(checkpoint), server_groups=[ServerGroup(num_gpus=1)]),
    }
    settings = tiny(
        tmp_path,
        "groups",
        engine={"sglang_models": models, "rollout_num_gpus": None, "colocate": False},
        reward={"custom_rm_path": "tests.run.judging:likelihood", "rm_type": None, "rm_timeout": 240.0},
    )

    async def kill(view: Watching) -> None:
        await view.until(lambda progress: progress.state.version >= 1, deadline_s=3 * START_S)
        os.kill(view.pid_of("model"), signal.SIGKILL)

    asyncio.run(run_with(settings, kill))
    events = events_of(tmp_path / "runs" / "groups")
    joined = [event for event in of(events, WorkerJoined) if event.role in ("engine", "model")]
    groups = {event.worker: event.facts["group"] for event in joined}
    assert sorted(groups.values()) == ["actor-0", "actor-1", "judge-0", "judge-0"]
    assert [event.role for event in of(events, WorkerLost)].count("model") == 1
    planned = of(events, PlacementPlanned)[0]
    assert [bundles.group for bundles in planned.bundles] == ["", "actor-0", "actor-1", "judge-0"]
    completed = of(events, RolloutCompleted)
    assert {groups[event.engine] for event in completed} == {"actor-0", "actor-1"}
    assert {groups[event.engine] for event in of(events, WeightsActivated)} == {"actor-0", "actor-1"}
    _compare(checkpoint, events, completed)
    for words in (["audit", str(tmp_path / "runs" / "groups")], ["retrain", str(tmp_path / "runs" / "groups")]):
        assert main(words) == 0, capsys.readouterr().out


def _other_weights(checkpoint: str, folder: Path) -> None:
    """Write a model of the same shape and tokenizer with other weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(checkpoint)).float().save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)


def _compare(checkpoint: Path, events: list[Recorded], completed: list[RolloutCompleted]) -> None:
    """Compare the newest rewards with those of transformers on the files: no version of the run has reached them."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    prompts = {event.group: event for event in of(events, PromptSubmitted)}
    rewards = {event.sample: event.value for event in of(events, RewardAssigned)}
    whole = [event for event in completed if event.tokens is not None and not event.start and event.sample in rewards]
    assert len(whole) >= COMPARED
    for event in whole[-COMPARED:]:
        ids = np.concatenate([unpack(prompts[event.group].tokens), unpack(event.tokens)])
        tokens = torch.from_numpy(ids.astype(np.int64))[None]
        with torch.no_grad():
            log_probs = model(tokens).logits.log_softmax(-1)
        expected = log_probs[0, :-1].gather(1, tokens[0, 1:, None]).mean().item()
        assert rewards[event.sample] == pytest.approx(expected, abs=1e-4)
