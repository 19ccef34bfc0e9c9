"""`Weights`: the tensors of a folder by their Hugging Face names, of which any part is read alone."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from functools import reduce
from typing import TYPE_CHECKING

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.rules import Piece, Rule, Shape
from schemas.errors import CheckpointMismatch
from storage.weights.file_runs import Box, FileRun, RunReader, write_all
from storage.weights.prediction_layers import in_prediction_layer

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Weights(ABC):
    """Tensors of an open folder, of which any part is read without the rest. `close` closes its files."""

    def __init__(self) -> None:
        """Open no file."""
        self._reader = RunReader()

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """Hugging Face names of the tensors."""

    @abstractmethod
    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor, without reading it."""

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor, without reading it."""

    @abstractmethod
    def runs(self, name: str, box: Box) -> list[FileRun]:
        """Return where the files have a part of a tensor, in row-major order.

        Raises CheckpointMismatch if a file is damaged or the tensor incomplete.
        """

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors that were read so far."""
        return self._reader.bytes_read

    def tensor(self, name: str) -> Tensor:
        """Read a tensor. Raises CheckpointMismatch if its file is damaged."""
        return self.part(name, Box.of(self.shape(name)))

    def part(self, name: str, box: Box) -> Tensor:
        """Read a part of a tensor, and nothing else. Raises CheckpointMismatch if its file is damaged."""
        import torch

        tensor = torch.empty(box.shape, dtype=self.dtype(name))
        self._reader.fill(tensor_memory(tensor), self.runs(name, box))
        return tensor

    def parameter(self, rule: Rule, rank: int, ranks: int) -> Tensor:
        """Read a rank's part of a Megatron parameter, and nothing else. Raises CheckpointMismatch as `part`."""
        return rule.merge_from(lambda piece: self.part(*self._place(rule, piece)), rank, ranks)

    def parameter_dtype(self, rule: Rule) -> torch.dtype:
        """Return the dtype of a parameter: that of its tensors, or the widest."""
        import torch

        return reduce(torch.promote_types, map(self.dtype, rule.names))

    def copy_parameter(self, rule: Rule, file: io.FileIO) -> None:
        """Append the bytes of a whole parameter to a file. Raises CheckpointMismatch as `part`, OSError."""
        pieces = rule.pieces(0, 1)
        # Pieces of rows follow each other in the file; pieces of columns alternate.
        alternate = rule.dim > 0 and len(pieces) > 1
        if alternate or len({self.dtype(name) for name in rule.names}) > 1:
            write_all(file, tensor_memory(self.parameter(rule, 0, 1).contiguous()))
            return
        places = (self._place(rule, piece) for piece in pieces)
        self._reader.copy((run for place in places for run in self.runs(*place)), file)

    def copy_tensor(self, name: str, file: io.FileIO) -> None:
        """Append the bytes of a tensor to a file. Raises CheckpointMismatch as `part`, OSError."""
        self._reader.copy(self.runs(name, Box.of(self.shape(name))), file)

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def _place(self, rule: Rule, piece: Piece) -> tuple[str, Box]:
        name = rule.names[piece.tensor]
        return name, Box.of(self.shape(name)).clipped(rule.dim, piece.start, piece.stop)


def tensor_memory(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU."""
    import torch

    flat = tensor.reshape(-1).view(torch.uint8)
    return flat.numpy().data if flat.numel() else memoryview(b"")


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
