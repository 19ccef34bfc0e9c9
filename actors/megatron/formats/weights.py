"""`Weights`: the whole tensors of a folder by their Hugging Face names, read one at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.rules import Rule, Shape
from schemas.errors import CheckpointMismatch
from storage.weights.prediction_layers import in_prediction_layer

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Weights(Protocol):
    """Tensors of an open folder. `close` closes its files."""

    @property
    def names(self) -> Collection[str]:
        """Hugging Face names of the tensors."""

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor, without reading it."""

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor, without reading it."""

    def tensor(self, name: str) -> Tensor:
        """Read a tensor. Raises CheckpointMismatch if its file is damaged."""

    def close(self) -> None:
        """Close the files."""


def check_weights(weights: Weights, rules: Mapping[str, Rule], architecture: Architecture, where: str) -> None:
    """Compare names and shapes with those of the rules. Raises CheckpointMismatch with what differs."""
    expected = {name: shape for rule in rules.values() for name, shape in zip(rule.names, rule.shapes, strict=True)}
    names = set(weights.names)
    missing = sorted(expected.keys() - names)
    unexpected = [name for name in sorted(names - expected.keys()) if not may_be_left_out(name, architecture)]
    problems = [f"{name}: missing" for name in missing] + [f"{name}: unexpected" for name in unexpected]
    for name in sorted(expected.keys() & names):
        shape = weights.shape(name)
        if shape != expected[name]:
            problems.append(f"{name}: shape {list(shape)}, but the model has {list(expected[name])}")
    refuse(problems, where)


def may_be_left_out(name: str, architecture: Architecture) -> bool:
    """Return whether the trainer needs no such tensor.

    A tied lm_head and the RoPE frequencies of old checkpoints repeat others. Layers after the last one predict further
    tokens, which the trainer does not: weight versions repeat those of the model's folder.
    """
    repeats = (architecture.tied and name == "lm_head.weight") or name.endswith("rotary_emb.inv_freq")
    return repeats or in_prediction_layer(name, architecture.num_layers, architecture.prediction_layers)


def refuse(problems: list[str], where: str) -> None:
    """Raise CheckpointMismatch with the first of these problems, if there are any."""
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise CheckpointMismatch(f"{where} does not fit its config.json: {shown}")
