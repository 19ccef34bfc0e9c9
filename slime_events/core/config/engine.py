"""What a rollout engine is: replicas, device, SGLang's own settings."""

from typing import Annotated, Any, Literal

from msgspec import field

from slime_events.core.config.base import Settings, doc

Device = Literal["auto", "cpu", "cuda"]
CHUNK_TOKENS: dict[Device, int] = {"auto": 64, "cpu": 64, "cuda": 512}
"""A GPU engine with 512 samples at 60 tokens a second would make 480 chunks of 64 a second, at 74 us each."""


class EngineSettings(Settings, frozen=True, kw_only=True):
    """N replicas of one SGLang engine. A run's launcher makes cuda of `device` auto where there are GPUs."""

    hf_checkpoint: Annotated[str, doc("HF folder the engine starts from")] = ""
    device: Annotated[Device, doc("where engines and trainer run; auto is cuda where there are GPUs")] = "auto"
    rollout_num_gpus: Annotated[int | None, doc("GPUs (on CPU: replicas) for rollout in total", above=0)] = None
    rollout_num_gpus_per_engine: Annotated[int, doc("GPUs of one engine (its tensor parallel size)", above=0)] = 1
    colocate: Annotated[
        bool, doc("on GPUs: a trainer rank and an engine share each; as many engines as ranks if not said otherwise")
    ] = False
    sglang_server_concurrency: Annotated[int, doc("samples in flight per engine", above=0)] = 512
    deterministic: Annotated[
        bool | None, doc("same tokens for the same seed and weights; default: on for CPU, off for GPU")
    ] = None
    chunk_tokens: Annotated[
        int | None, doc("append progress every K tokens of a sample; default: 64 on CPU, 512 on GPU", above=0)
    ] = None
    chunk_seconds: Annotated[float, doc("... or after T seconds with new tokens", above=0)] = 5.0
    eval_hold_seconds: Annotated[
        float, doc("how long an evaluation may keep an engine from newer weights that training waits for", above=0)
    ] = 5.0
    sglang: Annotated[dict[str, Any], doc("SGLang ServerArgs by name (flags --sglang-*)")] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """Engine replicas."""
        return max(1, (self.rollout_num_gpus or 1) // self.rollout_num_gpus_per_engine)

    @property
    def chunk(self) -> int:
        """Tokens of a sample after which progress is appended."""
        return self.chunk_tokens or CHUNK_TOKENS[self.device]
