"""`--use-rollout-routing-replay` through the whole loop: the trainer uses the engine's experts from the log."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.megatron.rank import TrainerRank
from actors.trainer.ranks import rendezvous_address
from schemas.arrays import unpack
from schemas.rollouts import RolloutCompleted, RolloutProgressed
from schemas.steps import StepCommitted
from schemas.workers import WorkerLost
from slime_events.app.cli.main import main
from slime_events.app.demo.settings import BASE
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.training.train_batch import TrainBatch
from slime_events.loop.training.pending_batches import PendingBatches
from storage.log import Recorded
from tests.megatron.test_routes import choices_of
from tests.megatron.tiny import make_model
from tests.run.test_families import GRADER
from tests.run.test_killed import Command, kill
from tests.run.tiny import MARK, events_of, marked, of, running, tiny

pytestmark = [pytest.mark.real, pytest.mark.soak]

STEPS, NEW_TOKENS = 3, 48
LAYERS, EACH = 2, 2
TRAINER = {"use_rollout_routing_replay": True, "num_steps_per_rollout": 2}


def make_moe(folder: Path) -> None:
    """A small Qwen3-MoE with the demo's tokenizer."""
    make_model(folder, "qwen3_moe", tied=False, vocab_size=264, bos_token_id=None, eos_token_id=258, pad_token_id=256)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(BASE / file, folder / file)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The mark of all processes of a run, which do not outlive the test."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    kill(value)


def kill_an_engine(run: str) -> None:
    """SIGKILL to the host of SGLang."""
    hosts = [process for process in marked(run) if "serve_apps.engines.host" in process.cmdline()]
    assert hosts, [process.cmdline() for process in marked(run)]
    os.kill(hosts[0].pid, signal.SIGKILL)


def test_the_trainer_uses_the_experts_of_engines(tmp_path: Path, run: str) -> None:
    model, folder = tmp_path / "model", tmp_path / "runs" / "routed"
    make_moe(model)
    (tmp_path / "my_reward.py").write_text(GRADER)
    settings = tiny(
        tmp_path,
        "routed",
        rollout={"num_rollout": STEPS, "rollout_max_response_len": NEW_TOKENS},
        reward={"rm_type": None, "custom_rm_path": str(tmp_path / "my_reward.py")},
        engine={"hf_checkpoint": str(model), "chunk_tokens": 4},
        trainer={"hf_checkpoint": str(model), **TRAINER},
    )
    (tmp_path / "settings.toml").write_text(to_toml(settings))
    command = Command(tmp_path, "train", "--config", str(tmp_path / "settings.toml"), "--plain")
    asyncio.run(command.reaches(folder, 0, lambda state: running(state) > 0))
    kill_an_engine(run)
    assert command.ends() == 0, command.output_text
    events = events_of(folder)
    steps = of(events, StepCommitted)
    assert [step.metrics["engine_routed_share"] for step in steps] == [1.0] * STEPS
    assert all(step.metrics["logprob_agreement_max"] < 1e-4 for step in steps)
    completed = of(events, RolloutCompleted)
    (lost,) = [event.worker for event in of(events, WorkerLost) if event.role == "engine"]
    cut = {event.sample for event in of(events, RolloutProgressed) if event.engine == lost}
    assert cut & {event.sample for event in completed if event.engine != lost}, "another engine completed one"
    tokens = experts = 0
    for event in completed:
        assert event.experts is not None
        assert event.experts.tokens == event.prompt_length + event.length - 1
        assert event.experts.ids.dtype == "uint8"
        tokens, experts = tokens + event.experts.tokens, experts + len(event.experts.ids.data)
    assert experts == tokens * LAYERS * EACH
    print(f"{experts / tokens:g} bytes for each of {tokens} tokens", file=sys.stderr)
    assert share_of_equal(events, model) > 0.999
    for words in (["audit"], ["replay"], ["retrain"]):
        assert main([*words, str(folder)]) == 0


def share_of_equal(events: list[Recorded], model: Path) -> float:
    """Return the share of choices, by token and layer, that the trainer's routers make as engines did, of step 0."""
    batches = PendingBatches(unpack, temperature=1.0)
    for recorded in events:
        batches.apply(recorded.envelope.event, recorded.position)
    batch: TrainBatch = batches.make(0)
    settings = TrainerSettings(hf_checkpoint=str(model), use_routing_replay=True)
    rank = TrainerRank(settings, AlgorithmSettings(), 0, 1, rendezvous_address())
    try:
        own = choices_of(rank, batch)
    finally:
        rank.close()
    equal = []
    for sample in batch.samples:
        assert sample.experts is not None
        theirs, ours = (np.sort(choices[: len(sample.experts)], -1) for choices in (sample.experts, own[sample.sample]))
        equal.append((theirs == ours).all(-1).reshape(-1))
    return float(np.concatenate(equal).mean())
