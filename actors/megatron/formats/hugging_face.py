"""`HuggingFace`: config.json, a tokenizer and safetensors files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.model_rules import whole_rules
from actors.megatron.families.prediction_rules import prediction_rules
from actors.megatron.families.rules import Shape
from actors.megatron.formats.format import Report
from actors.megatron.formats.weights import Weights, may_be_left_out
from schemas.errors import CheckpointMismatch
from storage.weights.durable_file import DurableFile
from storage.weights.file_runs import Block, Box, FileRun, row_major, runs_of, write_all
from storage.weights.files import INDEX, SINGLE, is_name
from storage.weights.folder_formats import FolderFormat, format_of

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 5_000_000_000
"""Most bytes of a file, if the model's own folder has no files to follow; as `save_pretrained` has it."""
OF_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
"""Ends of the names of files that hold weights, or list such files."""
Header = dict[str, dict[str, Any]]
"""A safetensors header: dtype, shape and data_offsets of each tensor."""


class HuggingFace:
    """The `Format` of models on Hugging Face."""

    def recognises(self, folder: Path) -> bool:
        """Return whether the folder has a config.json and is no checkpoint."""
        return format_of(folder) is FolderFormat.HF

    def load(self, folder: Path, architecture: Architecture, step: int | None = None) -> Weights:
        """Open the safetensors files. The caller compares them with the architecture."""
        if step is not None:
            raise CheckpointMismatch(f"{folder} is a Hugging Face folder, which has no step {step}")
        return SafetensorsFolder(folder)

    def predicts(self, folder: Path, architecture: Architecture, step: int | None = None) -> bool:
        """Return whether it has all tensors of the layer."""
        rules = prediction_rules(replace(architecture, trains_prediction=True)).values()
        with closing(SafetensorsFolder(folder)) as weights:
            return {name for rule in rules for name in rule.names} <= set(weights.names)

    def save(self, weights: Weights, architecture: Architecture, folder: Path, origin: Path, report: Report) -> None:
        """Write the files of `origin` with these weights: the same names, order and sizes of files.

        Other files (config, tokenizer) are copied.
        """
        for path in sorted(origin.iterdir()):
            if path.is_file() and not path.name.endswith(OF_WEIGHTS):
                shutil.copyfile(path, folder / path.name)
        if _shard_names(origin):
            _write_like(origin, weights, architecture, folder, report)
        else:
            _write_new(weights, architecture, folder, report)


class SafetensorsFolder(Weights):
    """`Weights` of safetensors files."""

    def __init__(self, folder: Path) -> None:
        """Read the header of each file. Raises CheckpointMismatch."""
        super().__init__()
        shards = _shard_names(folder)
        if not shards:
            raise CheckpointMismatch(f"{folder} has neither {SINGLE} nor {INDEX}")
        self._entries = dict[str, tuple[dict[str, Any], Block]]()
        for shard in shards:
            before, header = read_header(folder / shard)
            for name, entry in header.items():
                box = Box.of(entry["shape"])
                start = len(before) + entry["data_offsets"][0]
                self._entries[name] = entry, Block(box, folder / shard, start, row_major(entry["shape"]))

    @property
    def names(self) -> Collection[str]:
        return self._entries.keys()

    def shape(self, name: str) -> Shape:
        return tuple(self._entries[name][0]["shape"])

    def dtype(self, name: str) -> torch.dtype:
        return torch_dtypes()[self._entries[name][0]["dtype"]]

    def runs(self, name: str, box: Box) -> list[FileRun]:
        _, block = self._entries[name]
        return runs_of([block], box, self.dtype(name).itemsize, f"{block.path}: {name}")


def read_header(path: Path) -> tuple[bytes, Header]:
    """Return the bytes before the first tensor, and each tensor's entry, in the order of the file.

    Raises CheckpointMismatch if safetensors cannot read the file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt"), path.open("rb") as file:
            size = file.read(8)
            text = file.read(int.from_bytes(size, "little"))
    except (OSError, SafetensorError) as error:
        raise CheckpointMismatch(f"{path} cannot be read: {error}; download it again") from error
    header = json.loads(text)
    header.pop("__metadata__", None)
    return size + text, dict(sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]))


@cache
def torch_dtypes() -> Mapping[str, torch.dtype]:
    """Return torch's dtypes by safetensors' names."""
    import torch

    return {
        "F64": torch.float64,
        "F32": torch.float32,
        "BF16": torch.bfloat16,
        "F16": torch.float16,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U8": torch.uint8,
        "BOOL": torch.bool,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
    }


def _shard_names(folder: Path) -> list[str]:
    index = folder / INDEX
    if not index.is_file():
        return [SINGLE] if (folder / SINGLE).is_file() else []
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointMismatch(f"{index} is damaged: {error}; download it again") from error
    if outside := [name for name in names if not isinstance(name, str) or not is_name(name)]:
        raise CheckpointMismatch(f"{index} names {outside[0]!r}, which is not a file of its folder")
    return names


def _write_like(origin: Path, weights: Weights, architecture: Architecture, folder: Path, report: Report) -> None:
    own = SafetensorsFolder(origin)
    copied = {name: weights if name in weights.names else own for name in own.names}
    if unknown := [name for name, of in copied.items() if of is own and not may_be_left_out(name, architecture)]:
        raise CheckpointMismatch(f"{origin} has {', '.join(unknown[:4])}, which the checkpoint does not have")
    for shard in _shard_names(origin):
        before, header = read_header(origin / shard)
        sources = [(_tied(name, weights, copied[name]), name) for name in header]
        dtypes = [_dtype_name(of, _source_name(name, of, weights)) for of, name in sources]
        if dtypes != [entry["dtype"] for entry in header.values()]:
            shapes = [tuple(entry["shape"]) for entry in header.values()]
            before = header_bytes(list(zip(header, dtypes, shapes, strict=True)))
        named = [(of, _source_name(name, of, weights)) for of, name in sources]
        _write_file(folder / shard, before, named, report)
    own.close()
    if (origin / INDEX).is_file():
        shutil.copyfile(origin / INDEX, folder / INDEX)


def _tied(name: str, weights: Weights, otherwise: Weights) -> Weights:
    """Return where a tensor comes from: a repeated lm_head is the embedding of the new weights."""
    return weights if name == "lm_head.weight" else otherwise


def _source_name(name: str, of: Weights, weights: Weights) -> str:
    return "model.embed_tokens.weight" if of is weights and name not in weights.names else name


def _write_new(weights: Weights, architecture: Architecture, folder: Path, report: Report) -> None:
    names = dict.fromkeys(name for rule in whole_rules(architecture).values() for name in rule.names)
    shards: list[list[str]] = [[]]
    held = total = 0
    for name in names:
        if name not in weights.names:
            continue
        size = _bytes(weights, name)
        if held + size > SHARD_BYTES and shards[-1]:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held, total = held + size, total + size
    count = len(shards)
    files = [SINGLE] if count == 1 else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    for file, members in zip(files, shards, strict=True):
        entries = [(name, _dtype_name(weights, name), weights.shape(name)) for name in members]
        _write_file(folder / file, header_bytes(entries), [(weights, name) for name in members], report)
    if count > 1:
        weight_map = {name: file for file, members in zip(files, shards, strict=True) for name in members}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _bytes(weights: Weights, name: str) -> int:
    size = weights.dtype(name).itemsize
    for length in weights.shape(name):
        size *= length
    return size


def _dtype_name(weights: Weights, name: str) -> str:
    own = weights.dtype(name)
    return next(text for text, dtype in torch_dtypes().items() if dtype == own)


def header_bytes(entries: Sequence[tuple[str, str, Shape]]) -> bytes:
    """Return the bytes before the first tensor, of (name, dtype, shape) in the order of the file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    dtypes, offset = torch_dtypes(), 0
    for name, dtype, shape in entries:
        size = dtypes[dtype].itemsize
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_file(path: Path, before: bytes, tensors: Iterable[tuple[Weights, str]], report: Report) -> None:
    with DurableFile(path) as file:
        write_all(file, memoryview(before))
        for weights, name in tensors:
            weights.copy_tensor(name, file)
        file.sync()
        report(path.name, file.tell())
