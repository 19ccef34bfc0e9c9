"""`WeightManifest`: the list of a weight version's tensors and files, with their digests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import WeightsDamaged
from schemas.outside_json import read_json
from storage.digests import TensorDigest, weights_digest
from storage.weights.base_files import MANIFEST
from storage.weights.files import INDEX, ITEM_BYTES, is_name


class StoredTensor(TensorDigest, frozen=True):
    """One tensor of a version."""

    file: Annotated[str, doc("Name of the shard with the tensor.")]


class WeightManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One weight version."""

    version: Annotated[int, doc("Weight version, from 0.")]
    parent: Annotated[int | None, doc("Version from which it was trained; None for version 0.")]
    digest: Annotated[str, doc("Digest of `tensors` (storage/digests.py).")]
    bytes: Annotated[int, doc("Bytes of `tensors`.")]
    tensors: Annotated[dict[str, StoredTensor], doc("The trainer's tensors by name.")]
    carried: Annotated[
        dict[str, StoredTensor],
        doc("Tensors of the base checkpoint that the trainer does not have, by name: multi-token prediction layers."),
    ] = {}
    files: Annotated[dict[str, str], doc("sha256 (hex) of other files (config, tokenizer) by name.")] = {}


def version_name(manifest: WeightManifest) -> str:
    """Return the name of a version's folder."""
    return f"v{manifest.version:06d}-{manifest.digest[:12]}"


def write_index(folder: Path, stored: Mapping[str, StoredTensor]) -> None:
    """Write the index of a version that has several files of tensors."""
    weight_map = {name: stored[name].file for name in sorted(stored)}
    metadata = {"total_size": sum(map(tensor_bytes, stored.values()))}
    index = msgspec.json.encode({"metadata": metadata, "weight_map": weight_map})
    (folder / INDEX).write_bytes(msgspec.json.format(index, indent=2))


def write_manifest(folder: Path, manifest: WeightManifest) -> Path:
    """Write the manifest into a version's folder, and return its path."""
    path = folder / MANIFEST
    path.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    return path


def read_manifest(folder: Path) -> WeightManifest:
    """Return a version's manifest, and check its digest. Raises WeightsDamaged."""
    path = folder / MANIFEST
    try:
        manifest = read_json(path.read_bytes(), WeightManifest)
    except FileNotFoundError:
        raise WeightsDamaged(f"{folder} is not a weight version: it has no {MANIFEST}") from None
    except msgspec.DecodeError as error:
        raise WeightsDamaged(f"{path} is damaged ({error}): restore the folder from a copy") from error
    stored = (*manifest.tensors.values(), *manifest.carried.values())
    if outside := [name for name in (*manifest.files, *(tensor.file for tensor in stored)) if not is_name(name)]:
        raise WeightsDamaged(f"{path} names {outside[0]!r}, which is not a file of its folder")
    if twice := manifest.tensors.keys() & manifest.carried.keys():
        raise WeightsDamaged(f"{path} lists {min(twice)!r} twice: restore the folder from a copy")
    if weights_digest(manifest.tensors) != manifest.digest:
        raise WeightsDamaged(f"{path} lists tensors that do not have its digest: restore the folder from a copy")
    return manifest


def tensor_bytes(digest: TensorDigest) -> int:
    """Return the size of a tensor."""
    return math.prod(digest.shape) * ITEM_BYTES[digest.dtype]
