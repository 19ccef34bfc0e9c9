"""`WeightManifest`: what a weight version's folder says of itself, in `manifest.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from schemas.errors import WeightsDamaged
from storage.digests import TensorDigest, weights_digest

MANIFEST = "manifest.json"


class StoredTensor(msgspec.Struct, frozen=True):
    """One tensor. dtype: safetensors' name; sha256: of its little-endian bytes; file: the shard that holds it."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    file: str


class WeightManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One weight version. digest: of all tensors (storage/digests.py). bytes: of all tensors.

    tensors: by name. files: sha256 of what makes the folder a checkpoint beside the weights (config, tokenizer).
    """

    version: int
    parent: int | None
    digest: str
    bytes: int
    tensors: dict[str, StoredTensor]
    files: dict[str, str] = {}

    def digest_of_tensors(self) -> str:
        """The digest that the entries of `tensors` give."""
        return weights_digest({name: TensorDigest(t.dtype, t.shape, t.sha256) for name, t in self.tensors.items()})


def write_manifest(folder: Path, manifest: WeightManifest) -> Path:
    """Put it into a version's folder; its path."""
    path = folder / MANIFEST
    path.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    return path


def read_manifest(folder: Path) -> WeightManifest:
    """A version's manifest, its own digest checked. Raises WeightsDamaged."""
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=WeightManifest)
    except FileNotFoundError:
        raise WeightsDamaged(f"{folder} is no weight version: it has no {MANIFEST}") from None
    except msgspec.DecodeError as error:
        raise WeightsDamaged(f"{path} is damaged ({error}): restore the folder from a copy") from error
    if manifest.digest_of_tensors() != manifest.digest:
        raise WeightsDamaged(f"{path} lists tensors that do not have its digest: restore the folder from a copy")
    return manifest
