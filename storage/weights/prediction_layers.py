"""`prediction_tensors`: the tensors of a checkpoint's multi-token prediction layers, which follow its last layer."""

from __future__ import annotations

from pathlib import Path

import msgspec

from schemas.errors import CheckpointMismatch
from schemas.outside_json import read_json
from storage.weights.files import TensorView, open_checkpoint


class _Config(msgspec.Struct, frozen=True):
    """Part of a config.json."""

    num_hidden_layers: int = 0
    num_nextn_predict_layers: int | None = None


def in_prediction_layer(name: str, num_layers: int, prediction_layers: int) -> bool:
    """Return whether a Hugging Face tensor is one of the layers that follow the last of `num_layers`.

    MiMo's checkpoints number these layers apart, from 0 on.
    """
    follow = (f"model.layers.{num_layers + layer}." for layer in range(prediction_layers))
    apart = (f"model.mtp_layers.{layer}." for layer in range(prediction_layers))
    return name.startswith((*follow, *apart))


def prediction_tensors(config: Path, folder: Path) -> dict[str, TensorView]:
    """Return the mapped tensors of the multi-token prediction layers in a Hugging Face folder, by name.

    config: a copy of its config.json. Raises CheckpointMismatch if the config is damaged, WeightsDamaged.
    """
    try:
        sizes = read_json(config.read_bytes(), _Config)
    except msgspec.DecodeError as error:
        raise CheckpointMismatch(f"{config} is damaged ({error}): restore it from a copy") from error
    layers = sizes.num_hidden_layers, sizes.num_nextn_predict_layers or 0
    if not layers[1]:
        return {}
    return {name: tensor for name, tensor in open_checkpoint(folder).items() if in_prediction_layer(name, *layers)}
