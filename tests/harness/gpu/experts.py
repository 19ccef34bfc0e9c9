"""A step of a mixture of experts against a dense step with the same active parameters: seconds and memory."""

from __future__ import annotations

from typing import Any

from slime_events.core.training.train_batch import TrainBatch
from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import Scene, forget_peak, lengths_to, make_batch, one_rank, peak
from tests.harness.gpu.speed import Figures, say_profile, timed_steps
from tests.megatron.tiny import make_model

SIZES: dict[str, Any] = {
    "vocab_size": 32_768,
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
    "initializer_range": 0.02,
}
SMALL = SIZES | {"vocab_size": 4096, "hidden_size": 256, "num_hidden_layers": 1, "head_dim": 16}
"""Sizes on the CPU, where times say nothing."""
MIXTURES = {"4 experts, 2 a token": (4, 2, 3072), "64 experts, 8 a token": (64, 8, 768)}
"""Experts, experts of a token, inner size of each: the dense MLP is 6144 wide."""
TOKENS = 16_384
GROUPED: dict[str, Any] = {"moe_grouped_gemm": True}
WAYS: dict[str, dict[str, Any]] = {
    "grouped GEMM": {"megatron": GROUPED},
    "grouped GEMM, routing replay": {"use_routing_replay": True, "megatron": GROUPED},
    "grouped GEMM, all-to-all": {"megatron": GROUPED | {"moe_token_dispatcher_type": "alltoall"}},
    "one after the other": {},
}


def look(scene: Scene) -> None:
    """Time the dense model, then each mixture in each way."""
    sizes, active = (SIZES, 6144) if scene.on_gpu else (SMALL, 256)
    make_model(scene.folder / "dense", "qwen3", tied=False, **sizes, intermediate_size=active)
    dense = _step(scene, "dense", None, "dense", {})
    for name, (experts, top, inner) in MIXTURES.items():
        wide = inner if scene.on_gpu else active // top
        folder = f"experts-{experts}"
        more = {"num_experts": experts, "num_experts_per_tok": top, "moe_intermediate_size": wide}
        make_model(scene.folder / folder, "qwen3_moe", tied=False, **sizes, **more)
        _profile(scene, folder, f"profile, {name}")
        for way, settings in WAYS.items():
            _step(scene, folder, dense, f"{name}, {way}", settings)


def _profile(scene: Scene, folder: str, title: str) -> None:
    forget_peak()
    with one_rank(scene.folder / folder, **_usual(scene), megatron=GROUPED) as rank:
        say_profile(scene, rank, _batch(scene), title)


def _usual(scene: Scene) -> dict[str, Any]:
    return {"bf16": scene.on_gpu, "optimizer_digest": "off", "max_tokens_per_gpu": TOKENS}


def _batch(scene: Scene) -> TrainBatch:
    tokens, longest = (TOKENS, 2048) if scene.on_gpu else (256, 64)
    return make_batch(lengths_to(tokens, longest), SMALL["vocab_size"])


def _step(scene: Scene, folder: str, dense: float | None, name: str, settings: dict[str, Any]) -> float | None:
    batch, title = _batch(scene), f"step, {name}"
    try:
        forget_peak()
        with one_rank(scene.folder / folder, **_usual(scene), **settings) as rank:
            seconds, metrics = timed_steps(rank, batch)
            count = sum(parameter.numel() for parameter in rank.trainee.model.parameters())
    except Exception as error:
        Row.failed(title, error).say()
        return None
    figures: Figures = {"step, s": seconds, "parameters, M": round(count / 1e6), "peak, GiB": peak()}
    figures |= {part: metrics[part] for part in ("seconds_forward_backward", "seconds_optimizer") if part in metrics}
    if dense:
        figures["step / dense step"] = seconds / dense
    Row(title, f"{batch.tokens} tokens in {len(batch.samples)} samples", figures).say()
    return seconds
