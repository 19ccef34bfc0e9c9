"""`FrozenModel`: a model that is not trained and gives log-probs: the reference, the teacher, or an older policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from actors.megatron.architecture import Architecture, check_vocabulary
from actors.megatron.model import build_model, transformer_config
from actors.megatron.residence import ExchangedWeights, OwnModel, Residence, VisitingModel
from actors.megatron.weights import digest_tensors, export_hf_weights, load_hf_weights
from schemas.errors import CheckpointMismatch
from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.train_batch import StoredVersion
from slime_events.loop.training.past_versions import OLD_ACTOR
from storage.digests import weights_digest

REFERENCE = "reference"
TEACHER = "teacher"
PREFIXES = {REFERENCE: "ref_", TEACHER: "teacher_", OLD_ACTOR: ""}
"""slime's prefixes of the columns that their log-probs go to."""


@dataclass(slots=True)
class FrozenModel:
    """This rank's part, cut as the policy is over `group`. digest: of the whole weights in the trainer's dtype, as a
    weight version has one (storage/digests.py). version: of this run, where it has become one.
    """

    architecture: Architecture
    residence: Residence
    group: dist.ProcessGroup
    digest: str = ""
    version: int | None = None

    @classmethod
    def load(
        cls,
        folder: str,
        architecture: Architecture,
        residence: Residence,
        policy: torch.nn.Module,
        group: dist.ProcessGroup,
    ) -> FrozenModel:
        """The weights of a Hugging Face folder; collective in the tensor parallel group. policy: see `Residence`.
        Raises CheckpointMismatch.
        """
        found = cls(architecture, residence, group)
        found._fill(folder, policy)
        return found

    def become(self, stored: StoredVersion, policy: torch.nn.Module) -> None:
        """A version of this run; likewise. Raises CheckpointMismatch where its folder holds other weights."""
        if self.version == stored.version:
            return
        self.version = None
        self._fill(stored.folder, policy)
        if self.digest != stored.digest:
            raise CheckpointMismatch(
                f"{stored.folder} holds weights {self.digest}, and version {stored.version} has {stored.digest}: put "
                "the folder back from a copy"
            )
        self.version = stored.version

    def _fill(self, folder: str, policy: torch.nn.Module) -> None:
        with self.residence.present(policy, keep=True) as model:
            load_hf_weights(model, self.architecture, folder, self.group)
            self.digest = weights_digest(digest_tensors(export_hf_weights(model, self.architecture, self.group)))


@dataclass(frozen=True, slots=True)
class Residences:
    """Makes room for the weights of models that are not trained, beside the policy. build: makes another model like it.
    on_host: they wait on the host.
    """

    policy: torch.nn.Module
    build: Callable[[], torch.nn.Module]
    device: torch.device
    on_host: bool

    def alike(self) -> Residence:
        """For weights of the policy's architecture."""
        return ExchangedWeights(self.policy) if self.on_host else OwnModel(self.build())

    def other(self, model: torch.nn.Module) -> Residence:
        """For a model of another architecture."""
        return VisitingModel(model, self.device) if self.on_host else OwnModel(model)


def load_frozen(
    policy: Architecture,
    settings: TrainerSettings,
    algorithm: AlgorithmSettings,
    flags: Mapping[str, Any],
    room: Residences,
    group: dist.ProcessGroup,
) -> dict[str, FrozenModel]:
    """The models that the settings want log-probs of, by name. policy: its architecture. flags: Megatron's of the
    policy, sorted.

    Raises CheckpointMismatch, ConfigError for a folder that does not fit itself, the policy or the ranks.
    """
    found, base, teacher = dict[str, FrozenModel](), settings.hf_checkpoint, settings.opd_teacher_load
    if estimator_of(algorithm).needs_reference(algorithm):
        found[REFERENCE] = FrozenModel.load(settings.ref_load or base, policy, room.alike(), room.policy, group)
    if algorithm.use_opd and teacher is not None:
        check_vocabulary(base, teacher)
        architecture = Architecture.read(teacher)
        config = transformer_config(architecture, settings, flags)
        if room.on_host and architecture == policy and settings.custom_model_provider_path is None:
            residence = room.alike()
        else:
            residence = room.other(build_model(architecture, config, room.device))
        found[TEACHER] = FrozenModel.load(teacher, architecture, residence, room.policy, group)
    if algorithm.keep_old_actor:
        found[OLD_ACTOR] = FrozenModel(policy, room.alike(), group)
    return found
