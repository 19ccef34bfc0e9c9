"""`Scene`: where a look works. Models and batches of random weights and tokens, and ranks on them."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from actors.megatron.rank import TrainerRank
from actors.trainer.ranks import rendezvous_address
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.training.train_batch import TrainBatch, TrainSample
from tests import made
from tests.megatron.tiny import make_model

MIDDLE: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.05,
}
"""Qwen2 with heads of 64: a CPU computes it in float64 in seconds."""
LARGE: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "initializer_range": 0.02,
}
"""The shape of Qwen2.5-0.5B."""
MIXTURE: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 128,
    "initializer_range": 0.05,
}
"""Qwen3-MoE whose sizes every kernel supports."""
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Scene:
    """device: "cuda" or "cpu". folder: for models and what else is written. On the CPU models and batches are small:
    there a look is tried out, and says nothing of a GPU.
    """

    device: str
    folder: Path

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def model(self, name: str) -> Path:
        """A folder of that name: a Qwen2, "middle" or "large", or "mixture". Its weights are the same in bfloat16 and
        float32.
        """
        folder = self.folder / name
        if not (folder / "model.safetensors").exists():
            if name == "mixture":
                make_model(folder, "qwen3_moe", tied=False, **MIXTURE)
            else:
                make_model(folder, "qwen2", **(LARGE if name == "large" and self.on_gpu else MIDDLE))
            weights = {
                key: tensor.bfloat16().float() for key, tensor in load_file(folder / "model.safetensors").items()
            }
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder


def settings_of(model: Path, **more: Any) -> TrainerSettings:
    """Return one rank's settings, packing by tokens."""
    chosen = {"hf_checkpoint": str(model), "lr": 1e-4, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 16_384}
    return TrainerSettings(**{**chosen, "distributed_timeout_minutes": 2, **more})


def whole_settings(model: Path, algorithm: dict[str, Any] | None = None, **more: Any) -> TrainSettings:
    """Return the settings of a run with that trainer."""
    return made.settings(trainer=settings_of(model, **more), algorithm=algorithm or {})


@contextmanager
def one_rank(model: Path, algorithm: dict[str, Any] | None = None, **more: Any) -> Iterator[TrainerRank]:
    """Yield a rank in this process, on the device that torch sees."""
    settings = whole_settings(model, algorithm, **more)
    rank = TrainerRank(settings.trainer, settings.algorithm, 0, 1, rendezvous_address())
    try:
        yield rank
    finally:
        rank.close()


def make_batch(lengths: Sequence[int], vocabulary: int, step: int = 0) -> TrainBatch:
    """Return samples of these lengths, a quarter of each its prompt; advantages of either sign. A group has four."""
    random = np.random.default_rng([7, step])
    samples = []
    for index, length in enumerate(lengths):
        response = length - max(1, length // 4)
        samples.append(
            TrainSample(
                sample=f"{step}-{index}",
                group=f"{step}-{index // 4}",
                rollout=f"{step}-{index}",
                tokens=random.integers(0, vocabulary, length).astype(np.int32),
                response_length=response,
                loss_mask=np.ones(response, np.int8),
                rollout_log_probs=random.uniform(-9, -8, response).astype(np.float32),
                reward=float(random.normal()),
                raw_reward=1.0,
                oldest_version=step,
                newest_version=step,
            )
        )
    return TrainBatch(step=step, samples=tuple(samples))


def lengths_to(total: int, longest: int, seed: int = 0) -> list[int]:
    """Return lengths from an eighth of the longest (8 or more) up to it, whose sum is `total` tokens."""
    random, shortest = np.random.default_rng(seed), longest // 8
    lengths: list[int] = []
    while (left := total - sum(lengths)) > longest:
        lengths.append(min(int(random.integers(shortest, longest + 1)), left - shortest))
    return [*lengths, left]


def allocated() -> float:
    """Return the GiB that tensors take on the GPU; 0 without a GPU."""
    return torch.cuda.memory_allocated() / GIB if torch.cuda.is_available() else 0.0


def peak() -> float:
    """Return the most GiB that tensors took since `forget_peak`; 0 without a GPU."""
    return torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else 0.0


def forget_peak() -> None:
    """Begin `peak` anew, with nothing kept that could be given back. A closed rank's model is in circles of references:
    the collector alone ends it.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
