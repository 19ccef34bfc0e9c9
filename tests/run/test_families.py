"""Families besides the demo's, through the whole loop: SGLang serves the weights that Megatron trains."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from schemas.steps import StepCommitted
from slime_events.app.cli.main import main
from slime_events.app.demo.settings import BASE
from tests.megatron.tiny import make_model
from tests.run.tiny import events_of, of, run_with, tiny

pytestmark = pytest.mark.real

STEPS = 2
SLOW = (
    *("glm4", "glm4_moe_lite", "mistral", "deepseek_v2", "deepseek_v2_dense", "deepseek_v3", "moonlight", "glm4_moe"),
    "mimo",
)
GRADER = """
async def reward_func(args, sample, **kwargs):
    return float(sum(sample.tokens) % 2)
"""


@pytest.mark.parametrize(
    "family",
    ["qwen3_moe", *(pytest.param(family, marks=pytest.mark.soak) for family in SLOW)],
)
def test_engine_and_trainer_agree_on_every_version(family: str, tmp_path: Path) -> None:
    check(family, tmp_path)


@pytest.mark.soak
def test_an_interleaved_pipeline_trains_a_run(tmp_path: Path) -> None:
    stages = {"virtual_pipeline_model_parallel_size": 2}
    pipeline = {"pipeline_model_parallel_size": 2, "actor_num_gpus_per_node": 2, "megatron": stages}
    check("qwen3", tmp_path, pipeline, num_hidden_layers=4)


def check(family: str, tmp_path: Path, trainer: Mapping[str, Any] | None = None, **model: Any) -> None:
    """Train a run. trainer: its settings. model: of its config."""
    folder = tmp_path / "model"
    ends = {"bos_token_id": None, "eos_token_id": 258, "pad_token_id": 256}
    make_model(folder, family, tied=False, vocab_size=264, **ends, **model)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(BASE / file, folder / file)
    (tmp_path / "my_reward.py").write_text(GRADER)
    settings = tiny(
        tmp_path,
        family,
        rollout={"num_rollout": STEPS, "rollout_max_response_len": 8},
        reward={"rm_type": None, "custom_rm_path": str(tmp_path / "my_reward.py")},
        engine={"hf_checkpoint": str(folder)},
        trainer={"hf_checkpoint": str(folder), **(trainer or {})},
    )
    asyncio.run(run_with(settings))
    steps = of(events_of(tmp_path / "runs" / family), StepCommitted)
    assert len(steps) == STEPS
    for step in steps:
        assert step.metrics["grad_norm"] > 0
        assert step.metrics["logprob_agreement_max"] < 1e-4
    run = str(tmp_path / "runs" / family)
    assert main(["audit", run]) == 0
    assert main(["replay", run]) == 0
    assert main(["retrain", run]) == 0
