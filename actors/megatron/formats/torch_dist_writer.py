"""`write_release`: write weights as a torch_dist folder, without a process group."""

from __future__ import annotations

import io
import json
import os
import pickle
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.model_rules import names_of, whole_rules
from actors.megatron.families.rules import Rule, Shape
from actors.megatron.formats.format import Report
from actors.megatron.formats.stored_names import StoredName, written_name
from actors.megatron.formats.weights import Weights
from schemas.errors import CheckpointMismatch
from storage.weights.durable_file import DurableFile
from storage.weights.folder_formats import METADATA, TRACKER
from storage.weights.saved_tensor import locate_tensor
from storage.weights.torch_dist import BACKEND

RELEASE = "release"
FILE_BYTES = 5_000_000_000
"""Bytes after which the next file begins."""


def places_of(architecture: Architecture) -> dict[StoredName, Rule]:
    """Return the rule of each parameter by the place where Megatron-LM's saver puts it, in the model's order."""
    rules = dict(whole_rules(architecture))
    if architecture.tied:
        del rules["output_layer.weight"]
    stacked = architecture.experts is None  # Megatron-LM stores layers apart if a pattern says which have experts
    return {written_name(names, stacked=stacked): rules[names[0]] for names in names_of(rules).values()}


def write_release(weights: Weights, architecture: Architecture, folder: Path, report: Report) -> None:
    """Write the tracker and the folder `release`. The list of tensors, which makes it complete, is written last."""
    target = folder / RELEASE
    target.mkdir()
    writer = _Writer(target, architecture, report)
    places = places_of(architecture)

    for place, rule in places.items():
        writer.add(place, rule.shape(0, 1), weights.parameter_dtype(rule), partial(weights.copy_parameter, rule))
    (target / "metadata.json").write_text(json.dumps(BACKEND), encoding="utf-8")
    predicted = {} if architecture.trains_prediction else {"mtp_num_layers": None}
    args = Namespace(**architecture.as_flags() | predicted)
    common = {"checkpoint_version": 3.0, "iteration": 0, "args": args}
    torch.save(common, target / "common.pt")
    writer.finish()
    (folder / TRACKER).write_text(RELEASE, encoding="utf-8")


class _Writer:
    """Writes tensors behind each other, and the list of their places."""

    def __init__(self, folder: Path, architecture: Architecture, report: Report) -> None:
        self._folder, self._report = folder, report
        self._layers = architecture.num_layers
        self._experts = architecture.experts.count if architecture.experts else 0
        self._entries: dict[str, TensorStorageMetadata] = {}
        self._places: dict[MetadataIndex, _StorageInfo] = {}
        self._files = self._named_files()
        self._name, self._file = next(self._files)

    def add(self, place: StoredName, shape: Shape, dtype: torch.dtype, copy: Callable[[io.FileIO], None]) -> None:
        """Write a parameter. copy: appends its bytes to a file.

        Raises CheckpointMismatch if layers of one tensor differ in their dtype.
        """
        sizes = [self._layers] if place.key.startswith("decoder.layers.") and self._is_stacked(place) else []
        sizes += [self._experts] if len(place.at) > len(sizes) else []
        whole, part = torch.Size((*sizes, *shape)), torch.Size((*(1,) * len(place.at), *shape))
        offset = torch.Size((*place.at, *(0,) * len(shape)))
        entry = self._entries.setdefault(place.key, TensorStorageMetadata(TensorProperties(dtype=dtype), whole, []))
        if entry.size != whole or entry.properties.dtype != dtype:
            raise CheckpointMismatch(
                f"{place} has dtype {dtype} and shape {list(whole)}, but the layers before it have "
                f"{entry.properties.dtype} and {list(entry.size)}: one tensor holds all layers"
            )
        index = MetadataIndex(place.key, offset, len(entry.chunks))
        entry.chunks.append(ChunkStorageMetadata(offset, part))
        if self._file.tell() >= FILE_BYTES:
            self._close_file()
            self._name, self._file = next(self._files)
        start = self._file.tell()
        with torch.serialization.skip_data():  # everything but the elements, for which it leaves room
            torch.save(torch.empty(part, dtype=dtype), self._file)
        end = self._file.tell()
        self._file.seek(locate_tensor(self._folder / self._name, start, end - start).start)
        copy(self._file)
        self._file.seek(end)
        self._places[index] = _StorageInfo(self._name, start, end - start)

    def finish(self) -> None:
        """Write the list of tensors."""
        self._close_file()
        whole = Metadata({**self._entries}, storage_data=self._places, storage_meta=StorageMeta(), version="1.0.0")
        with (self._folder / METADATA).open("xb") as file:
            pickle.dump(whole, file)
            file.flush()
            os.fsync(file.fileno())

    def _is_stacked(self, place: StoredName) -> bool:
        return not place.key.removeprefix("decoder.layers.")[0].isdigit()

    def _named_files(self) -> Iterator[tuple[str, DurableFile]]:
        number = 0
        while True:
            name = f"__{number}_0.distcp"
            yield name, DurableFile(self._folder / name)
            number += 1

    def _close_file(self) -> None:
        self._file.sync()
        self._report(self._name, self._file.tell())
        self._file.close()
