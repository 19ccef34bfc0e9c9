"""`TorchDist`: Megatron's distributed checkpoints, also those of Megatron-LM's own tools."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.model_rules import names_of, whole_rules
from actors.megatron.families.rules import Copy, Rule, Shape
from actors.megatron.formats.format import Report
from actors.megatron.formats.stored_names import StoredName, stored_names
from actors.megatron.formats.weights import Weights, refuse
from schemas.errors import CheckpointMismatch
from storage.weights.folder_formats import FolderFormat, format_of, iteration_folder
from storage.weights.torch_dist import OPTIMIZER, StoredTensor, read_stored_tensors

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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

    def save(self, weights: Weights, architecture: Architecture, folder: Path, origin: Path, report: Report) -> None:
        """Write the weights as `release`, as slime's converter does."""
        from actors.megatron.formats.torch_dist_writer import write_release

        write_release(weights, architecture, folder, report)


class TorchDistWeights:
    """`Weights` of an iteration's folder: parameters are taken apart into Hugging Face's tensors."""

    def __init__(self, folder: Path, architecture: Architecture) -> None:
        """Find each parameter and compare its shape. Raises CheckpointMismatch with what is missing or unexpected."""
        self._folder, self._stored = folder, read_stored_tensors(folder)
        self._waiting: dict[str, Tensor] = {}
        self._rules: dict[str, tuple[Rule, StoredName]] = {}
        self._find(architecture)
        self.names = self._rules.keys()

    def shape(self, name: str) -> Shape:
        rule, _ = self._rules[name]
        return rule.shapes[rule.names.index(name)]

    def dtype(self, name: str) -> torch.dtype:
        import torch

        dtype = getattr(torch, self._stored[self._rules[name][1].key].dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def tensor(self, name: str) -> Tensor:
        if name not in self._waiting:
            rule, place = self._rules[name]
            whole = read_part(self._folder, place, self._stored[place.key])
            if place.key in PADDED:
                whole = whole[: rule.shapes[0][0]]
            self._waiting |= zip(rule.names, rule.split([whole]), strict=True)
        return self._waiting.pop(name)

    def close(self) -> None:
        self._waiting.clear()

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
        for key in sorted(self._stored.keys() - used - left):
            if not key.startswith(OPTIMIZER) and not key.startswith("rng_state"):
                problems.append(f"{key}: unexpected")
        problems += _surplus_layers(self._stored, architecture)
        refuse(problems, str(self._folder))


def _misfit(place: StoredName, stored: StoredTensor, rule: Rule) -> str | None:
    """Return how the shape of a parameter differs from the rule's, if it does."""
    import torch

    whole = rule.merge([torch.empty(shape, device="meta") for shape in rule.shapes], 0, 1)
    shape, expected = stored.shape[len(place.at) :], tuple(whole.shape)
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


def read_part(folder: Path, place: StoredName, stored: StoredTensor) -> Tensor:
    """Return a tensor, or its part at `place.at`. Raises CheckpointMismatch if files are damaged or incomplete."""
    import torch

    lead = len(place.at)
    shape, taken, whole = stored.shape[lead:], 0, None
    for chunk in stored.chunks:
        ends = tuple(map(sum, zip(chunk.offset, chunk.shape, strict=True)))
        if not all(chunk.offset[axis] <= at < ends[axis] for axis, at in enumerate(place.at)):
            continue
        part = _chunk(folder / chunk.file, chunk.start, chunk.length)
        if tuple(part.shape) != chunk.shape or part.dtype != getattr(torch, stored.dtype):
            raise CheckpointMismatch(f"{folder / chunk.file} holds another tensor than {place}: restore it from a copy")
        part = part[tuple(at - chunk.offset[axis] for axis, at in enumerate(place.at))]
        if tuple(part.shape) == shape:
            return part
        whole = torch.empty(shape, dtype=part.dtype) if whole is None else whole
        where = tuple(slice(chunk.offset[axis], ends[axis]) for axis in range(lead, len(ends)))
        whole[where] = part
        taken += part.numel()
    if whole is None or taken != whole.numel():
        raise CheckpointMismatch(f"{folder}: {place} is incomplete: restore the folder from a copy")
    return whole


def _chunk(path: Path, start: int, length: int) -> Tensor:
    import torch

    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(length)
        tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may raise anything
        raise CheckpointMismatch(f"{path} cannot be read: {error}; restore it from a copy") from error
    if not isinstance(tensor, torch.Tensor):
        raise CheckpointMismatch(f"{path} holds no tensor at {start}: restore it from a copy")
    return tensor
