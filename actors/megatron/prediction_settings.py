"""`trained_architecture`: the architecture of a policy, with the prediction layer if it is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from actors.megatron.families.registry import read_architecture
from actors.megatron.layout import Layout
from schemas.errors import ImpossibleCombination

if TYPE_CHECKING:
    from actors.megatron.families.architecture import Architecture
    from slime_events.core.config.trainer import TrainerSettings


def trained_architecture(settings: TrainerSettings) -> Architecture:
    """Read the architecture of the settings' checkpoint. Raises CheckpointMismatch, ImpossibleCombination."""
    architecture = read_architecture(settings.hf_checkpoint)
    return check_prediction(settings, architecture)


def check_prediction(settings: TrainerSettings, architecture: Architecture) -> Architecture:
    """Return the architecture in which the prediction layer is trained, if the settings ask for it.

    Raises ImpossibleCombination if the checkpoint or the layout does not allow it.
    """
    if not settings.enable_mtp_training:
        return architecture
    layout, layers = Layout.of(settings), architecture.prediction_layers
    if layers != 1:
        raise ImpossibleCombination(
            f"enable-mtp-training needs one multi-token prediction layer, and num_nextn_predict_layers of the "
            f"checkpoint is {layers}: leave it out"
        )
    if layout.pipeline > 1 or layout.context > 1:
        raise ImpossibleCombination(
            f"enable-mtp-training with pipeline-model-parallel-size {layout.pipeline} and context-parallel-size "
            f"{layout.context}: it runs with tensor, expert and data parallel ranks; set both to 1"
        )
    if rate := settings.megatron.get("moe_router_bias_update_rate"):
        raise ImpossibleCombination(
            f"enable-mtp-training with moe-router-bias-update-rate {rate}: the layer's router would count tokens "
            "without a next token. Leave out one of them"
        )
    return replace(architecture, trains_prediction=True)
