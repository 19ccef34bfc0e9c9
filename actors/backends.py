"""`Backend`: a training backend's rank, as the trainer calls it. `BACKENDS` has the backends by name.

A new backend is a class with these methods and an entry in `BACKENDS`.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.training.datums import PassResult, TrainPass
from slime_events.core.training.save_progress import SaveProgress
from slime_events.core.training.train_batch import StepResult, TrainBatch
from slime_events.loop.training.difference import Distance
from storage.folders.remote import StoredFile
from storage.weights.shards import Shard, TensorBytes
from storage.weights.snapshot import DeltaPlan
from storage.weights.store import Upload

MEGATRON = "megatron"
BACKENDS: Mapping[str, str] = {MEGATRON: "actors.megatron.rank:TrainerRank"}
"""`module:class` of each backend's rank. The import of a module may take seconds."""


class Backend(Protocol):
    """A rank. Every method is collective: all ranks call it, in the same order, with the same arguments.

    The trainer calls a method on all ranks with `Ranks.everywhere(Backend.train, batch)`. Arguments and results are
    pickled if the rank is another process.
    """

    def train(self, batch: TrainBatch, dump: str | None = None) -> StepResult:
        """Run all optimizer steps of a rollout step.

        dump: file for the step's inputs. Raises TrainerError; the weights are then unusable.
        """
        ...

    def run_pass(self, request: TrainPass, backward: bool) -> PassResult:
        """Run a client's pass. backward: add its gradients to the next step."""
        ...

    def export_bytes(self) -> list[TensorBytes]:
        """Return all weights under Hugging Face names; empty on ranks other than 0. The next call may change them."""
        ...

    def write_shards(self, folder: str, max_bytes: int, durable: bool, deltas: DeltaPlan | None = None) -> list[Shard]:
        """Write this rank's share of the weights to the folder of a draft version; return the files of all ranks.

        deltas: how, if versions may be deltas. Raises as `storage.weights.shards.write_shards`.
        """
        ...

    def upload_shards(self, folder: str, upload: Upload) -> dict[str, StoredFile]:
        """Upload this rank's shards from the draft on its host; return the files of all ranks.

        Raises StoreUnavailable.
        """
        ...

    def weights_digest(self) -> str:
        """Return the digest of the whole weights (storage/digests.py)."""
        ...

    def weights_distance(self, folder: str) -> Distance:
        """Measure the weights against a Hugging Face folder. Raises CheckpointMismatch, WeightsDamaged."""
        ...

    def show_weights(self, folder: str) -> dict[str, str]:
        """Call the user's function with a written weight version; return the digest of its source by setting.

        Raises PlugPointError.
        """
        ...

    def optimizer_digest(self) -> str:
        """Return the sha256 (hex) of the optimizer's state, which does not depend on the number of ranks."""
        ...

    def critic_digest(self) -> str:
        """Return the sha256 (hex) of the critic's weights and optimizer state; empty without a critic."""
        ...

    def save_checkpoint(self, folder: str | Path) -> None:
        """Write model, optimizer, schedule and any critic to a new folder, which appears only when it is complete."""
        ...

    def begin_checkpoint(self, folder: str | Path) -> None:
        """Copy the state, and save the checkpoint in a thread. One at a time. Raises TrainerError."""
        ...

    def finish_checkpoint(self, wait: bool) -> SaveProgress:
        """Return the checkpoint's progress on all ranks. wait: wait until this rank has written."""
        ...

    def load_checkpoint(self, folder: str | Path) -> None:
        """Continue from a checkpoint. Raises CheckpointMismatch if it does not fit."""
        ...

    def load_weights(self, folder: str | Path) -> None:
        """Load the weights of a Hugging Face folder; the optimizer's state and the schedule stay.

        Raises CheckpointMismatch if the folder does not fit.
        """
        ...

    def advance_schedule(self, optimizer_steps: int) -> None:
        """Advance the learning rate schedule by a number of optimizer steps."""
        ...

    def reset(self) -> None:
        """Load the initial weights again, with a new optimizer and a new schedule."""
        ...

    def rest(self) -> None:
        """Give the memory of the device back; the state stays in host memory. A second call does nothing."""
        ...

    def wake(self) -> None:
        """Bring the state back to the device, bit for bit. A second call does nothing."""
        ...

    def close(self) -> None:
        """Leave the process group, after which this process may become another rank."""
        ...


class RankClass(Protocol):
    """Starts a rank of a backend in this process."""

    def __call__(
        self,
        settings: TrainerSettings,
        algorithm: AlgorithmSettings,
        rank: int,
        world_size: int,
        master: str,
        shown: Mapping[str, object] | None = None,
    ) -> Backend:
        """Join the other ranks at `master` ("host:port" of rank 0), and load the weights that the settings name.

        shown: the `args` of the user's functions; by default these settings. Raises CheckpointMismatch, ConfigError,
        TrainerError, PlugPointError.
        """
        ...


def rank_class(backend: str = MEGATRON) -> RankClass:
    """Import a backend. It may take seconds."""
    module, _, name = BACKENDS[backend].partition(":")
    imported: RankClass = getattr(import_module(module), name)
    return imported


def call_by_name(rank: Backend, method: str, *args: object, **kwargs: object) -> Any:
    """Call a method of a rank. method: the `__name__` of a method of `Backend`, which another process may send."""
    return getattr(rank, method)(*args, **kwargs)
