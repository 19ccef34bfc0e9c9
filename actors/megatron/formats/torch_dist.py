"""`TorchDist`: Megatron's distributed checkpoints, also those of Megatron-LM's own tools."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.model_rules import names_of, whole_rules
from actors.megatron.families.prediction_rules import PREDICTION
from actors.megatron.families.rules import Copy, Rule, Shape
from actors.megatron.formats.format import Report
from actors.megatron.formats.stored_names import StoredName, stored_names
from actors.megatron.formats.weights import Weights, refuse
from schemas.errors import CheckpointMismatch
from storage.weights.file_runs import Block, Box, FileRun, runs_of
from storage.weights.folder_formats import FolderFormat, format_of, iteration_folder
from storage.weights.saved_tensor import ITEM_BYTES, locate_tensor
from storage.weights.torch_dist import OPTIMIZER, StoredChunk, StoredTensor, read_stored_tensors

if TYPE_CHECKING:
    import torch

PADDED = ("embedding.word_embeddings.weight", "output_layer.weight")
"""Parameters with a row per token, which Megatron-LM pads to a multiple of 128 tokens."""
VALUE_HEAD = {"output_layer.weight": "score.weight", "output_layer.bias": "score.bias"}


class TorchDist:
    """The `Format` of Megatron's distributed checkpoints."""

    def recognises(self, folder: Path) -> bool:
        """Return whether the folder holds iterations, or is one, and is no checkpoint of this trainer."""
        return format_of(folder) is FolderFormat.TORCH_DIST

    def load(self, folder: Path, architecture: Architecture, step: int | None = None) -> Weights:
        """Open an iteration: `step`, or the newest."""
        return TorchDistWeights(iteration_folder(folder, step), architecture)

    def predicts(self, folder: Path, architecture: Architecture, step: int | None = None) -> bool:
        """Return whether it has parameters of the layer."""
        return holds_prediction(iteration_folder(folder, step))

    def save(self, weights: Weights, architecture: Architecture, folder: Path, origin: Path, report: Report) -> None:
        """Write the weights as `release`, as slime's converter does."""
        from actors.megatron.formats.torch_dist_writer import write_release

        write_release(weights, architecture, folder, report)


class TorchDistWeights(Weights):
    """`Weights` of an iteration's folder: parameters are taken apart into Hugging Face's tensors."""

    def __init__(self, folder: Path, architecture: Architecture) -> None:
        """Find each parameter and compare its shape. Raises CheckpointMismatch with what is missing or unexpected."""
        super().__init__()
        self._folder, self._stored = folder, read_stored_tensors(folder)
        self._blocks = dict[StoredChunk, Block]()
        self._chunks, self._indexed = dict[StoredName, list[StoredChunk]](), set[tuple[str, int]]()
        self._rules: dict[str, tuple[Rule, StoredName]] = {}
        self._find(architecture)

    @property
    def names(self) -> Collection[str]:
        return self._rules.keys()

    def shape(self, name: str) -> Shape:
        rule, _ = self._rules[name]
        return rule.shapes[rule.names.index(name)]

    def dtype(self, name: str) -> torch.dtype:
        import torch

        dtype = getattr(torch, self._stored[self._rules[name][1].key].dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def runs(self, name: str, box: Box) -> list[FileRun]:
        rule, place = self._rules[name]
        placed = [(piece, at) for at, piece in rule.placed(0, 1) if piece.tensor == rule.names.index(name)]
        runs = list[FileRun]()
        # Pieces of columns alternate in each row of the box.
        strips = box.strips(rule.dim) if len(placed) > 1 else [box]
        for strip, (piece, offset) in product(strips, sorted(placed)):
            part = strip.clipped(rule.dim, piece.start, piece.stop)
            if part.shape[rule.dim] > 0:
                runs += self._runs_of_parameter(place, part.moved(rule.dim, offset - piece.start))
        return runs

    def _runs_of_parameter(self, place: StoredName, box: Box) -> list[FileRun]:
        """Return the runs of a part of a parameter, which is at `place.at` of a stored tensor."""
        stored = self._stored[place.key]
        inside = Box((*place.at, *box.begin), (*(at + 1 for at in place.at), *box.end))
        chunks = self._chunks_at(place, stored)
        blocks = [self._block(chunk, stored, place) for chunk in chunks if inside.common(_box(chunk))]
        return runs_of(blocks, inside, ITEM_BYTES[stored.dtype], f"{self._folder}: {place}")

    def _chunks_at(self, place: StoredName, stored: StoredTensor) -> Sequence[StoredChunk]:
        """Return the chunks that have elements of a layer or an expert, of which a tensor may have thousands."""
        lead = len(place.at)
        if (place.key, lead) not in self._indexed:
            self._indexed.add((place.key, lead))
            for chunk in stored.chunks:
                ranges = (
                    range(at, at + size) for at, size in zip(chunk.offset[:lead], chunk.shape[:lead], strict=True)
                )
                for at in product(*ranges):
                    self._chunks.setdefault(StoredName(place.key, at), []).append(chunk)
        return self._chunks.get(place, [])

    def _block(self, chunk: StoredChunk, stored: StoredTensor, place: StoredName) -> Block:
        if chunk not in self._blocks:
            path = self._folder / chunk.file
            saved = locate_tensor(path, chunk.start, chunk.length)
            if (saved.dtype, saved.shape) != (stored.dtype, chunk.shape):
                raise CheckpointMismatch(f"{path} holds another tensor than {place}: restore it from a copy")
            self._blocks[chunk] = Block(_box(chunk), path, saved.start, saved.strides)
        return self._blocks[chunk]

    def _find(self, architecture: Architecture) -> None:
        rules, problems, used = dict(whole_rules(architecture)), list[str](), set[str]()
        head = self._stored.get("output_layer.weight")
        if head is not None and head.shape == (1, architecture.hidden_size):
            del rules["output_layer.weight"]
            for own, name in VALUE_HEAD.items():
                if own in self._stored:
                    rules[own] = Copy.of(name, *self._stored[own].shape)
        elif architecture.tied:
            del rules["output_layer.weight"]
        for names, aliases in names_of(rules).items():
            places, rule = [place for name in aliases for place in stored_names(name)], rules[aliases[0]]
            place = next((place for place in places if place.key in self._stored), None)
            if place is None:
                if names[0] not in VALUE_HEAD.values():
                    problems.append(f"{places[0]} ({', '.join(names)}): missing")
                continue
            used.add(place.key)
            if problem := _misfit(place, self._stored[place.key], rule):
                problems.append(problem)
            self._rules |= dict.fromkeys(names, (rule, place))
        left = {"output_layer.weight"} if architecture.tied else set()
        others: tuple[str, ...] = (OPTIMIZER, "rng_state")
        if architecture.prediction_layers and not architecture.trains_prediction:
            others += (PREDICTION,)  # versions repeat the layer of the model's folder
        for key in sorted(self._stored.keys() - used - left):
            if not key.startswith(others):
                problems.append(f"{key}: unexpected")
        problems += _surplus_layers(self._stored, architecture)
        refuse(problems, str(self._folder))


def holds_prediction(folder: Path) -> bool:
    """Return whether an iteration's folder has parameters of a multi-token prediction layer."""
    return any(key.startswith(PREDICTION) for key in read_stored_tensors(folder))


def _misfit(place: StoredName, stored: StoredTensor, rule: Rule) -> str | None:
    """Return how the shape of a parameter differs from the rule's, if it does."""
    shape, expected = stored.shape[len(place.at) :], rule.shape(0, 1)
    if any(at >= length for at, length in zip(place.at, stored.shape, strict=False)):
        return f"{place}: missing, {place.key} has shape {list(stored.shape)}"
    if place.key in PADDED and shape[1:] == expected[1:] and shape[0] >= expected[0]:
        return None
    return None if shape == expected else f"{place}: shape {list(shape)}, but the model has {list(expected)}"


def _surplus_layers(stored: Mapping[str, StoredTensor], architecture: Architecture) -> list[str]:
    """Return the tensors with more layers or experts than the model."""
    problems = []
    count = architecture.experts.count if architecture.experts else 0
    for key, tensor in stored.items():
        sizes = [architecture.num_layers] if re.match(r"decoder\.layers\.(?!\d)", key) else []
        sizes += [count] if ".mlp.experts.experts." in key and not re.search(r"experts\.experts\.\d", key) else []
        if any(length > size for length, size in zip(tensor.shape, sizes, strict=False)):
            problems.append(f"{key}: shape {list(tensor.shape)}, but the model has {sizes} layers or experts")
    return problems


def _box(chunk: StoredChunk) -> Box:
    return Box(chunk.offset, tuple(map(sum, zip(chunk.offset, chunk.shape, strict=True))))
