"""The context of a run's model, as its settings and its checkpoint say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime_events.core.checkpoint.context import context_of, longest_of
from tests import made


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"max_position_embeddings": 32768}, 32768),
        ({"max_position_embeddings": 32768, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 131072),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            },
            131072,
        ),
        ({"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192),
        (
            {
                "max_position_embeddings": 40960,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            40960,
        ),
        ({"max_position_embeddings": 4096, "rope_parameters": {"factor": 2}}, 8192),
        ({"text_config": {"max_position_embeddings": 128000}, "model_type": "vision"}, 128000),
        ({"seq_length": 2048}, 2048),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": "many"}, None),
        ({"max_position_embeddings": 10, "rope_scaling": {"factor": float("inf")}}, 10),
        ([1], None),
        ({}, None),
    ],
)
def test_of_a_checkpoint(tmp_path: Path, config: Any, longest: int | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert longest_of(tmp_path) == longest


def test_a_checkpoint_without_a_config(tmp_path: Path) -> None:
    assert longest_of(tmp_path) is None
    (tmp_path / "config.json").write_bytes(b"\xff{")
    assert longest_of(tmp_path) is None


@pytest.mark.parametrize(
    ("flag", "engine", "context"), [(None, None, 1000), (300, None, 300), (5000, None, 1000), (None, 2000, 2000)]
)
def test_the_smallest_limit_of_a_run(tmp_path: Path, flag: int | None, engine: int | None, context: int) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1000}')
    settings = made.settings(
        rollout={"rollout_max_context_len": flag},
        engine={"hf_checkpoint": str(tmp_path), "sglang": {} if engine is None else {"context_length": engine}},
    )
    assert context_of(settings) == context
