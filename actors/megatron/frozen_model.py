"""`FrozenModel`: a model that computes log-probs and is not trained: the reference, the teacher, or an older policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.registry import read_architecture
from actors.megatron.families.vocabulary import check_vocabulary
from actors.megatron.model import build_model, transformer_config
from actors.megatron.residence import ExchangedWeights, OwnModel, Residence, VisitingModel
from actors.megatron.weight_share import model_digest
from actors.megatron.weights import load_hf_weights
from actors.step.place import Place
from actors.step.policy import REFERENCE, TEACHER
from schemas.doc import doc
from schemas.errors import CheckpointMismatch
from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.training.train_batch import StoredVersion
from slime_events.loop.training.past_versions import OLD_ACTOR
from storage.weights.whole_copies import whole_copy


@dataclass(slots=True)
class FrozenModel:
    """This rank's part of the model, cut over ranks as the policy is."""

    architecture: Architecture
    residence: Annotated[Residence, doc("Memory of the weights between passes.")]
    place: Place
    digest: Annotated[str, doc("Digest of the whole weights in the trainer's dtype (storage/digests.py).")] = ""
    version: Annotated[int | None, doc("The run's version, if the weights are a version of this run.")] = None

    @classmethod
    def load(
        cls,
        folder: str,
        architecture: Architecture,
        residence: Residence,
        policy: torch.nn.Module,
        place: Place,
        step: int | None = None,
    ) -> FrozenModel:
        """Load the weights of a folder of one of `FORMATS`; collective.

        policy: see `Residence`. step: the iteration of a torch_dist folder. Raises CheckpointMismatch.
        """
        frozen = cls(architecture, residence, place)
        frozen._fill(folder, policy, step)
        return frozen

    def become(self, stored: StoredVersion, policy: torch.nn.Module) -> None:
        """Load a version of this run; collective. Raises CheckpointMismatch if its folder holds different weights."""
        if self.version == stored.version:
            return
        self.version = None
        self._fill(stored.folder, policy)
        if self.digest != stored.digest:
            raise CheckpointMismatch(
                f"{stored.folder} holds weights {self.digest}, but version {stored.version} has {stored.digest}: "
                "restore the folder from a copy"
            )
        self.version = stored.version

    def _fill(self, folder: str, policy: torch.nn.Module, step: int | None = None) -> None:
        with whole_copy(folder) as local, self.residence.present(policy, keep=True) as model:
            load_hf_weights(model, self.architecture, local, self.place, step)
            self.digest = model_digest(model, self.architecture, self.place)


@dataclass(frozen=True, slots=True)
class Residences:
    """Allocates memory for the weights of frozen models."""

    policy: Annotated[torch.nn.Module, doc("The model in training.")]
    build: Annotated[Callable[[], torch.nn.Module], doc("Builds another model of the policy's architecture.")]
    device: torch.device
    on_host: Annotated[bool, doc("Keep the weights in host memory between passes.")]

    def alike(self) -> Residence:
        """Return a residence for weights of the policy's architecture."""
        return ExchangedWeights(self.policy) if self.on_host else OwnModel(self.build())

    def other(self, model: torch.nn.Module) -> Residence:
        """Return a residence for a model of another architecture."""
        return VisitingModel(model, self.device) if self.on_host else OwnModel(model)


def load_frozen(
    policy: Architecture,
    settings: TrainerSettings,
    algorithm: AlgorithmSettings,
    flags: Mapping[str, object],
    room: Residences,
    place: Place,
) -> dict[str, FrozenModel]:
    """Load the frozen models that the settings need, by name.

    policy: the policy's architecture. flags: Megatron's transformer flags of the policy. Raises CheckpointMismatch,
    ConfigError if a folder is inconsistent or does not fit the policy or the ranks.
    """
    frozen, base, teacher = dict[str, FrozenModel](), settings.hf_checkpoint, settings.opd_teacher_load
    if estimator_of(algorithm).needs_reference(algorithm):
        folder, step = (settings.ref_load, settings.ref_ckpt_step) if settings.ref_load else (base, None)
        frozen[REFERENCE] = FrozenModel.load(folder, policy, room.alike(), room.policy, place, step)
    if algorithm.use_opd and teacher is not None:
        check_vocabulary(base, teacher)
        architecture = read_architecture(teacher)
        config = transformer_config(architecture, settings, flags)
        if room.on_host and architecture == policy and settings.custom_model_provider_path is None:
            residence = room.alike()
        else:
            residence = room.other(build_model(architecture, config, room.device))
        frozen[TEACHER] = FrozenModel.load(teacher, architecture, residence, room.policy, place)
    if algorithm.keep_old_actor:
        frozen[OLD_ACTOR] = FrozenModel(policy, room.alike(), place)
    return frozen
