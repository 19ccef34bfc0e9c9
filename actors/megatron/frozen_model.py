"""`FrozenModel`: a model that is not trained and gives log-probs: the reference, the teacher, or an older policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from actors.megatron.architecture import Architecture, check_vocabulary
from actors.megatron.model import build_model, transformer_config
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
    model: torch.nn.Module
    group: dist.ProcessGroup
    digest: str = ""
    version: int | None = None

    @classmethod
    def load(
        cls, folder: str, architecture: Architecture, model: torch.nn.Module, group: dist.ProcessGroup
    ) -> FrozenModel:
        """The weights of a Hugging Face folder in a new model; collective in the tensor parallel group. Raises
        CheckpointMismatch.
        """
        found = cls(architecture, model.requires_grad_(False), group)
        found._fill(folder)
        return found

    def become(self, stored: StoredVersion) -> None:
        """A version of this run; likewise. Raises CheckpointMismatch where its folder holds other weights."""
        if self.version == stored.version:
            return
        self.version = None
        self._fill(stored.folder)
        if self.digest != stored.digest:
            raise CheckpointMismatch(
                f"{stored.folder} holds weights {self.digest}, and version {stored.version} has {stored.digest}: put "
                "the folder back from a copy"
            )
        self.version = stored.version

    def _fill(self, folder: str) -> None:
        load_hf_weights(self.model, self.architecture, folder, self.group)
        self.digest = weights_digest(digest_tensors(export_hf_weights(self.model, self.architecture, self.group)))


def load_frozen(
    policy: Architecture,
    build: Callable[[], torch.nn.Module],
    settings: TrainerSettings,
    algorithm: AlgorithmSettings,
    flags: Mapping[str, Any],
    device: torch.device,
    group: dist.ProcessGroup,
) -> dict[str, FrozenModel]:
    """The models that the settings want log-probs of, by name. build: makes another model like the policy. flags:
    Megatron's of the policy, sorted.

    Raises CheckpointMismatch, ConfigError for a folder that does not fit itself, the policy or the ranks.
    """
    found, base, teacher = dict[str, FrozenModel](), settings.hf_checkpoint, settings.opd_teacher_load
    if estimator_of(algorithm).needs_reference(algorithm):
        found[REFERENCE] = FrozenModel.load(settings.ref_load or base, policy, build(), group)
    if algorithm.use_opd and teacher is not None:
        check_vocabulary(base, teacher)
        architecture = Architecture.read(teacher)
        config = transformer_config(architecture, settings, flags)
        model = build_model(architecture, config, device)
        found[TEACHER] = FrozenModel.load(teacher, architecture, model, group)
    if algorithm.keep_old_actor:
        found[OLD_ACTOR] = FrozenModel(policy, build().requires_grad_(False), group)
    return found
