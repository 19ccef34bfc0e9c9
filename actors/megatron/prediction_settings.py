"""`trained_architecture`: the architecture of a policy, with the prediction layer if it is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from actors.megatron.families.registry import read_architecture
from actors.megatron.formats.registry import FORMATS, format_named
from schemas.errors import CheckpointMismatch, ImpossibleCombination
from slime_events.core.config.combinations import BALANCE_LOSSES, is_on

if TYPE_CHECKING:
    from actors.megatron.families.architecture import Architecture
    from slime_events.core.config.trainer import TrainerSettings


def trained_architecture(settings: TrainerSettings) -> Architecture:
    """Read the architecture of the settings' checkpoint. Raises CheckpointMismatch, ImpossibleCombination."""
    architecture = read_architecture(settings.hf_checkpoint)
    return check_prediction(settings, architecture)


def check_stored_prediction(flag: str, folder: str, step: int | None, architecture: Architecture) -> None:
    """Raise CheckpointMismatch if a folder of weights does not have the layer that is trained. step: its iteration."""
    path = Path(folder)
    if architecture.trains_prediction and not FORMATS[format_named(path)].predicts(path, architecture, step):
        raise CheckpointMismatch(
            f"--enable-mtp-training needs a multi-token prediction layer, which {flag} {folder} does not have: give a "
            "folder that has it, or leave --enable-mtp-training out"
        )


def check_prediction(settings: TrainerSettings, architecture: Architecture) -> Architecture:
    """Return the architecture in which the prediction layer is trained, if the settings ask for it.

    Raises ImpossibleCombination if the checkpoint or the layout does not allow it.
    """
    if not settings.enable_mtp_training:
        return architecture
    layers = architecture.prediction_layers
    if layers != 1:
        raise ImpossibleCombination(
            f"enable-mtp-training needs one multi-token prediction layer, and num_nextn_predict_layers of the "
            f"checkpoint is {layers}: leave it out"
        )
    for name in ("moe_router_bias_update_rate", *BALANCE_LOSSES):
        if is_on(value := settings.megatron.get(name)):
            raise ImpossibleCombination(
                f"enable-mtp-training with {name.replace('_', '-')} {value}: the balance of the layer's own experts is "
                "not computed. Leave out one of them"
            )
    return replace(architecture, trains_prediction=True)
