"""What a rollout engine is: replicas, device, SGLang's own settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from slime_events.core.config.base import Settings


class EngineSettings(Settings, frozen=True, kw_only=True):
    """N replicas of one SGLang engine. `device` auto is cuda where torch sees a GPU, else cpu."""

    hf_checkpoint: Annotated[str, Meta(description="HF folder the engine starts from")] = ""
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="where engines run")] = "auto"
    rollout_num_gpus: Annotated[int | None, Meta(description="GPUs (on CPU: replicas) for rollout in total")] = None
    rollout_num_gpus_per_engine: Annotated[int, Meta(description="GPUs of one engine (its tensor parallel size)")] = 1
    sglang_server_concurrency: Annotated[int, Meta(description="samples in flight per engine")] = 512
    deterministic: Annotated[
        bool | None, Meta(description="same tokens for the same seed and weights; default: on for CPU, off for GPU")
    ] = None
    chunk_tokens: Annotated[int, Meta(description="append progress every K tokens of a sample")] = 64
    chunk_seconds: Annotated[float, Meta(description="... or after T seconds with new tokens")] = 5.0
    eval_hold_seconds: Annotated[
        float, Meta(description="how long an evaluation may keep an engine from newer weights that training waits for")
    ] = 5.0
    sglang: Annotated[dict[str, Any], Meta(description="SGLang ServerArgs by name (flags --sglang-*)")] = field(
        default_factory=dict
    )

    @property
    def replicas(self) -> int:
        """Engine replicas."""
        return max(1, (self.rollout_num_gpus or 1) // self.rollout_num_gpus_per_engine)
