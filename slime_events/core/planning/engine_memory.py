"""`EngineBytes`: the memory of an SGLang engine on each of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from slime_events.core.config.engine import EngineSettings
from slime_events.core.planning.assumptions import GIB, Assumptions
from slime_events.core.planning.model import ModelShape

SHARED_MEMORY = 0.4
"""Share of a GPU's memory for weights and cache, if the engine shares the GPU with a trainer rank."""

TURN_MEMORY = 0.8
"""The same if ranks and engines take turns."""


def default_share(settings: EngineSettings) -> float | None:
    """Return the share of an engine that shares its GPU; None if it does not."""
    if not settings.colocate:
        return None
    return TURN_MEMORY if settings.takes_turns else SHARED_MEMORY


@dataclass(frozen=True, slots=True)
class EngineBytes:
    """Bytes on each GPU of an engine."""

    weights: int
    static: Annotated[int, doc("Weights and key-value cache together: the share that SGLang takes.")]
    runtime: Annotated[int, doc("CUDA context, graphs, temporaries of a step.")]
    token: Annotated[int, doc("Bytes of a token in the cache of one GPU.")]
    groups: Annotated[int, doc("Groups of GPUs that each have their own samples and cache.")]
    cached: Annotated[int, doc("Tokens that the cache of the whole engine holds.")]

    @property
    def cache(self) -> int:
        """Bytes of the key-value cache; below 0 if not even the weights fit."""
        return self.static - self.weights

    @property
    def total(self) -> int:
        """All bytes."""
        return self.static + self.runtime


def engine_bytes(shape: ModelShape, settings: EngineSettings, gpu_bytes: int, assumed: Assumptions) -> EngineBytes:
    """Return the memory of an engine. gpu_bytes: of a GPU."""
    size, groups = settings.rollout_num_gpus_per_engine, _attention_groups(settings)
    weights = engine_weights(shape, size, groups, assumed)
    share = settings.sglang.get("mem_fraction_static")
    if share is None:
        share = default_share(settings) or assumed.engine_memory
    static, token = int(float(share) * gpu_bytes), token_bytes(shape, settings)
    cached = max(0, static - weights) // token * groups
    return EngineBytes(weights, static, int(assumed.engine_gib * GIB), token, groups, cached)


def engine_weights(shape: ModelShape, size: int, groups: int, assumed: Assumptions) -> int:
    """Return the bytes of weights on a GPU. size: GPUs of the engine. groups: copies of attention.

    With several copies of attention, dense MLPs and the vocabulary are counted as copied too.
    """
    kept = shape.copied + shape.cut * groups // size + shape.experts // size
    return int(assumed.engine_weight_bytes * kept)


def token_bytes(shape: ModelShape, settings: EngineSettings) -> int:
    """Return the bytes of a token's keys and values on a GPU, all layers together.

    A GPU has at least one key-value head, and the whole latent vector (SGLang: `ModelConfig.get_num_kv_heads`,
    `calculate_mla_kv_cache_dim`).
    """
    value_bytes = 1 if str(settings.sglang.get("kv_cache_dtype", "")).startswith("fp8") else 2
    if shape.latent_width is not None:
        return value_bytes * shape.layers * shape.latent_width
    parts = settings.rollout_num_gpus_per_engine // _attention_groups(settings)
    return value_bytes * shape.layers * max(1, shape.key_value_heads // parts) * shape.key_value_width


def _attention_groups(settings: EngineSettings) -> int:
    """Return the data parallel groups of attention (SGLang's --enable-dp-attention), each with its own samples."""
    if not settings.sglang.get("enable_dp_attention"):
        return 1
    return min(max(1, int(settings.sglang.get("dp_size") or 1)), settings.rollout_num_gpus_per_engine)
