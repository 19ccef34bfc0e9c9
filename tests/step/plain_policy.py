"""A `Policy` of a few lines of torch, without Megatron: the model sees one token at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from actors.step.log_probs import LogitMemory, TargetTokens
from actors.step.micro_batch import MicroBatch
from actors.step.place import Place
from actors.step.policy import Outputs
from actors.step.schedule import Gradients, Single
from slime_events.core.training.datums import AdamParams, Datum
from slime_events.core.training.train_batch import TrainSample
from tests.megatron.tiny import VOCAB

ALONE = cast(dist.ProcessGroup, SimpleNamespace(size=lambda: 1, rank=lambda: 0))


class PlainPolicy:
    """Micro batches of two samples, and plain gradient descent. `events` has what was called, in order."""

    critic = None
    vocab_size = VOCAB

    def __init__(self, rate: float = 0.5) -> None:
        torch.manual_seed(0)
        self.place = Place(0, 1, torch.device("cpu"), tensor=ALONE, data=ALONE)
        self.model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 8), torch.nn.Linear(8, VOCAB))
        self.learning_rate = rate
        self.handles = [self.model], None, None
        self.replays_routing = False
        self.uses_every_sample = False
        self.schedule = Single(nullcontext, nullcontext, lambda loss: loss.backward())
        self.events: list[str] = []

    def frozen_model(self, name: str) -> None:
        return None

    def begin_update(self, samples: Sequence[TrainSample], masks: Sequence[Tensor], indices: Sequence[int]) -> None:
        """It adds no loss."""

    def engine_routed(self, samples: Sequence[TrainSample]) -> None:
        return None

    def deal(self, samples: Sequence[Any], indices: Sequence[int]) -> list[list[int]]:
        return [list(indices[begin : begin + 2]) for begin in range(0, len(indices), 2)]

    def pack(self, samples: Sequence[TrainSample], indices: Sequence[int]) -> MicroBatch[Tensor]:
        chosen = [samples[index] for index in indices]
        tokens = torch.from_numpy(np.concatenate([sample.tokens for sample in chosen]).astype(np.int64))
        ends = np.cumsum([sample.total_length for sample in chosen])
        sizes = [sample.response_length for sample in chosen]
        rows = np.concatenate([np.arange(end - size - 1, end - 1) for end, size in zip(ends, sizes, strict=True)])
        layout = torch.from_numpy(rows)
        return MicroBatch(tokens[None], torch.arange(len(tokens))[None], layout, tokens[layout + 1], sizes)

    def pack_datums(self, datums: Sequence[Datum]) -> MicroBatch[Tensor]:
        tokens, targets = (
            torch.from_numpy(np.concatenate([getattr(datum, name) for datum in datums]).astype(np.int64))
            for name in ("tokens", "targets")
        )
        rows = torch.arange(len(tokens))
        return MicroBatch(tokens[None], rows[None], rows, targets, [len(datum.targets) for datum in datums])

    def logits(self, packed: MicroBatch[Tensor]) -> Tensor:
        logits: Tensor = self.model(packed.token_ids)
        return logits

    def forward(self, packed: MicroBatch[Tensor], temperature: float, *, entropy_gradient: bool = False) -> Outputs:
        self.events.append("forward")
        targets = TargetTokens(packed.targets, packed.kept, temperature, ALONE, entropy_gradient, LogitMemory())
        log_probs, entropy = targets.of_logits(self.logits(packed)[0, packed.packed])
        return Outputs(packed.by_sample(log_probs), packed.by_sample(entropy))

    def score(
        self, samples: Sequence[TrainSample], indices: Sequence[int], temperature: float, entropies: Any = None
    ) -> dict[int, Tensor]:
        def keep(outputs: Outputs, members: list[int]) -> tuple[None, Outputs]:
            return None, outputs

        batches = self.deal(samples, indices)
        every = self.schedule.run(
            batches, lambda members: self.forward(self.pack(samples, members), temperature), keep, Gradients.NONE
        )
        of_samples = [
            (index, log_probs)
            for members, outputs in zip(batches, every, strict=True)
            for index, log_probs in zip(members, outputs.log_probs, strict=True)
        ]
        return dict(of_samples)

    def update(
        self,
        batches: Any,
        forward: Any,
        loss: Any,
        *,
        what: str,
        timed: Any = None,
        before: Callable[[], None] = print,
        size: Any = None,
    ) -> tuple[float, list[Any]]:
        self.clear_gradients()
        before()
        figures = self.schedule.run(batches, forward, loss, Gradients.COMPLETE)
        return self._step(self.learning_rate), figures

    def own_metrics(self) -> dict[str, float]:
        return {}

    def clear_gradients(self) -> None:
        self.model.zero_grad()

    def apply(self, update: AdamParams) -> tuple[float, bool]:
        return self._step(update.learning_rate), True

    def _step(self, rate: float) -> float:
        self.events.append("update")
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad
        return math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
