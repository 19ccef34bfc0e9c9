"""`Ranks`: what the trainer's shell needs of its ranks, whatever they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slime_events.core.train_batch import TrainBatch
from storage.weights.store import TensorBytes


class Result(Protocol):
    """What a rank gives back for one step."""

    @property
    def metrics(self) -> dict[str, float]:
        """By name."""

    @property
    def optimizer_digest(self) -> str:
        """sha256 hex over the optimizer's state."""


class Ranks(Protocol):
    """All Megatron ranks as one: calls go to every rank, answers are rank 0's."""

    async def train(self, batch: TrainBatch) -> Result:
        """One rollout step: all its optimizer steps."""

    async def export_weights(self) -> list[TensorBytes]:
        """HF-named tensors."""

    async def optimizer_digest(self) -> str:
        """sha256 hex over the optimizer's state, as in a step's result."""

    async def save_checkpoint(self, folder: str) -> None:
        """Model, optimizer, scheduler."""

    async def load_checkpoint(self, folder: str) -> None:
        """Go on from such a folder. Raises CheckpointMismatch where it is incomplete or does not fit; the ranks are
        then to be reset or to load another."""

    async def reset(self) -> None:
        """Back to what the run started from: weights, new optimizer, new schedule."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """metrics: by name, the same on every rank (seconds: the slowest rank's). optimizer_digest: of all ranks' state.

    It is told across processes, of which one may have no torch: so it is not where the ranks are.
    """

    metrics: dict[str, float]
    optimizer_digest: str


async def train(ranks: Ranks, batch: TrainBatch) -> Result:
    """One rollout step. An empty batch, which only a learner has, leaves weights, optimizer and schedule alone."""
    if not batch.samples:
        return StepResult({"samples": 0.0}, await ranks.optimizer_digest())
    return await ranks.train(batch)
