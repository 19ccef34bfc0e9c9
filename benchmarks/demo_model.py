"""The demo's settings, and its questions as requests, for benchmarks of single components."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from schemas.rollouts import Sampling
from serve_apps.engines.engine import GenerateRequest
from slime_events.app.demo.settings import prepare_demo
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.prompts.prompt import PromptRow
from slime_events.loop.prompts.source import PromptSource
from slime_events.plugins.tokenizer import load_tokenizer


def demo_requests(folder: Path, count: int) -> tuple[TrainSettings, list[GenerateRequest]]:
    """Return the demo's settings, with files in `folder`, and `count` requests with the demo's samples per question."""
    settings = prepare_demo(folder)
    rollout = settings.rollout
    source = PromptSource(settings.data, tokenizer=load_tokenizer(settings.engine.hf_checkpoint))
    rows = source.take(0, -(-count // rollout.n_samples_per_prompt))
    prompts = [row.tokens for row in rows if isinstance(row, PromptRow) and row.tokens is not None]
    sampling = Sampling(max_new_tokens=rollout.rollout_max_response_len or 40, temperature=rollout.rollout_temperature)
    return settings, [
        GenerateRequest(f"r{i}", prompts[i // rollout.n_samples_per_prompt].astype(np.int32), sampling, seed=i)
        for i in range(count)
    ]
