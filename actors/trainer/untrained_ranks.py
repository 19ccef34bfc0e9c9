"""`UntrainedRanks`: in place of Megatron's where nothing is trained: the weights stay as they are."""

from __future__ import annotations

import asyncio
import hashlib

from actors.trainer.ranks import StepResult
from slime_events.core.train_batch import TrainBatch
from storage.weights.files import open_checkpoint
from storage.weights.store import TensorBytes

DIGEST = hashlib.sha256(b"no optimizer").hexdigest()


class UntrainedRanks:
    """hf_checkpoint: the folder of the weights."""

    def __init__(self, hf_checkpoint: str) -> None:
        self._folder = hf_checkpoint

    async def train(self, batch: TrainBatch) -> StepResult:
        """Nothing; how many samples there were, for whoever looks at the steps."""
        rewards = [sample.raw_reward for sample in batch.samples]
        metrics = {"samples": float(len(rewards))}
        if rewards:
            metrics["reward"] = sum(rewards) / len(rewards)
        return StepResult(metrics, DIGEST)

    async def export_weights(self) -> list[TensorBytes]:
        """The checkpoint's tensors."""
        tensors = await asyncio.to_thread(open_checkpoint, self._folder)
        return [(name, tensor.dtype, tensor.shape, tensor.data) for name, tensor in tensors.items()]

    async def optimizer_digest(self) -> str:
        """There is none."""
        return DIGEST

    async def save_checkpoint(self, folder: str) -> None:
        """Nothing to save."""

    async def load_checkpoint(self, folder: str) -> None:
        """Nothing to load."""

    async def reset(self) -> None:
        """Nothing has moved."""
