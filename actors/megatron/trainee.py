"""`Trainee`: the policy in training with all that acts on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor

from actors.megatron.architecture import Architecture
from actors.megatron.cpu import on_cpu
from actors.megatron.data_split import packing_rule
from actors.megatron.forward import MicroBatch, pack, response_log_probs
from actors.megatron.parallel import Place
from slime_events.algorithms.packing import micro_batches
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.train_batch import TrainSample


@dataclass(frozen=True, slots=True)
class Trainee:
    """Model, optimizer and schedule are Megatron's; reference is there when a KL needs it."""

    architecture: Architecture
    settings: TrainerSettings
    algorithm: AlgorithmSettings
    place: Place
    model: DistributedDataParallel
    reference: torch.nn.Module | None
    optimizer: Any
    scheduler: Any

    def split(self, samples: Sequence[TrainSample], indices: Sequence[int], ranks: int = 1) -> list[list[list[int]]]:
        """Of each of `ranks` data parallel ranks its micro batches of `indices` into `samples`."""
        lengths = [samples[index].total_length for index in indices]
        rule = packing_rule(self.settings, self.architecture, ranks, cpu=on_cpu())
        dealt = micro_batches(lengths, rule)
        return [[[indices[place] for place in members] for members in batches] for batches in dealt]

    def pack(self, samples: Sequence[TrainSample], indices: Sequence[int]) -> MicroBatch:
        """One packed micro batch on this rank's device."""
        multiple = self.place.tensor.size() if self.model.config.sequence_parallel else 1
        return pack([samples[index] for index in indices], self.place.device, multiple_of=multiple)

    @torch.no_grad()
    def score(
        self, model: torch.nn.Module, samples: Sequence[TrainSample], indices: Sequence[int], temperature: float
    ) -> dict[int, Tensor]:
        """Index -> log-probs of the response, float32 [response], without gradient."""
        scores: dict[int, Tensor] = {}
        for members in self.split(samples, indices)[0]:
            packed = self.pack(samples, members)
            log_probs, _ = response_log_probs(model, packed, temperature, self.place.tensor)
            scores.update(zip(members, log_probs, strict=True))
        return scores
