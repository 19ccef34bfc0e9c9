"""What a rollout engine is: replicas, device, SGLang's own settings."""

from typing import Annotated, Any, Literal

from msgspec import field

from slime_events.core.config.base import Settings, doc


class EngineSettings(Settings, frozen=True, kw_only=True):
    """N replicas of one SGLang engine. `device` auto is cuda where torch sees a GPU, else cpu."""

    hf_checkpoint: Annotated[str, doc("HF folder the engine starts from")] = ""
    device: Annotated[Literal["auto", "cpu", "cuda"], doc("where engines run")] = "auto"
    rollout_num_gpus: Annotated[int | None, doc("GPUs (on CPU: replicas) for rollout in total", above=0)] = None
    rollout_num_gpus_per_engine: Annotated[int, doc("GPUs of one engine (its tensor parallel size)", above=0)] = 1
    sglang_server_concurrency: Annotated[int, doc("samples in flight per engine", above=0)] = 512
    deterministic: Annotated[
        bool | None, doc("same tokens for the same seed and weights; default: on for CPU, off for GPU")
    ] = None
    chunk_tokens: Annotated[int, doc("append progress every K tokens of a sample", above=0)] = 64
    chunk_seconds: Annotated[float, doc("... or after T seconds with new tokens", above=0)] = 5.0
    eval_hold_seconds: Annotated[
        float, doc("how long an evaluation may keep an engine from newer weights that training waits for", above=0)
    ] = 5.0
    sglang: Annotated[dict[str, Any], doc("SGLang ServerArgs by name (flags --sglang-*)")] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """Engine replicas."""
        return max(1, (self.rollout_num_gpus or 1) // self.rollout_num_gpus_per_engine)
