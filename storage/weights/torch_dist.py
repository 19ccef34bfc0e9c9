"""`read_stored_tensors`: the list of tensors in a torch_dist folder, read without torch and without running its pickle.

torch writes the list, `.metadata`, as a pickle of its own classes. Here each class is replaced by `_Record`, which only
holds what the pickle says about it, so that a folder from elsewhere runs nothing.
"""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from schemas.doc import doc
from schemas.errors import CheckpointMismatch
from storage.weights.files import is_name
from storage.weights.folder_formats import METADATA
from storage.weights.saved_tensor import ITEM_BYTES

BACKEND = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
"""Content of metadata.json, by which Megatron recognises the format."""
OPTIMIZER = "optimizer."
"""Beginning of the names of an optimizer's tensors."""


class StoredChunk(NamedTuple):
    """A rectangular part of a tensor, in one file."""

    offset: Annotated[tuple[int, ...], doc("Its first element in the tensor.")]
    shape: tuple[int, ...]
    file: str
    start: Annotated[int, doc("Position in the file, where torch.save wrote it.")]
    length: Annotated[int, doc("Bytes in the file.")]


class StoredTensor(NamedTuple):
    """A tensor of a torch_dist folder."""

    dtype: Annotated[str, doc("torch's name of the dtype.")]
    shape: tuple[int, ...]
    chunks: tuple[StoredChunk, ...]


class _Record:
    """Holds the state of an object in a pickle."""

    state: Any = {}

    def __init__(self, *_: Any) -> None:
        """Ignore the arguments of a constructor, which no object that is read here has."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def field(self, name: str) -> Any:
        """Return a value of the state. Raises KeyError."""
        return self.state[name]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "torch" and name in ITEM_BYTES:
            return name
        return _Record


def read_stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of one iteration's folder by name. Raises CheckpointMismatch if the list is unusable."""
    _check_backend(folder)
    try:
        whole = _Unpickler(io.BytesIO((folder / METADATA).read_bytes())).load()
        entries, places = whole.field("state_dict_metadata"), whole.field("storage_data")
        infos: dict[tuple[str, tuple[int, ...]], _Record] = {
            (index.field("fqn"), tuple(index.field("offset"))): info
            for index, info in places.items()
            if index.state.get("offset") is not None  # objects have none
        }
        return {
            name: _tensor(name, entry, infos)
            for name, entry in entries.items()
            if isinstance(entry.state, dict) and "chunks" in entry.state
        }
    except CheckpointMismatch as error:
        raise CheckpointMismatch(f"{folder / METADATA}: {error}") from error
    except Exception as error:  # a pickle from elsewhere may raise anything
        problem = f"{type(error).__name__}: {error}"
        raise CheckpointMismatch(f"{folder / METADATA} cannot be read ({problem}): restore it from a copy") from error


def _tensor(name: str, entry: _Record, infos: Mapping[tuple[str, tuple[int, ...]], _Record]) -> StoredTensor:
    properties, shape = entry.field("properties"), tuple(entry.field("size"))
    dtype = properties.state[0] if isinstance(properties.state, tuple) else properties.field("dtype")
    if dtype not in ITEM_BYTES:
        raise CheckpointMismatch(f"{name} has a dtype that is not supported")
    chunks = []
    for chunk in entry.field("chunks"):
        offset, size = tuple(chunk.field("offsets")), tuple(chunk.field("sizes"))
        info = infos[name, offset]
        file, start, length = (info.field(key) for key in ("relative_path", "offset", "length"))
        if info.state.get("transform_descriptors"):
            raise CheckpointMismatch(f"{name} is compressed, which is not supported")
        if not is_name(file) or start < 0 or length < math.prod(size) * ITEM_BYTES[dtype]:
            raise CheckpointMismatch(f"{name} has an impossible place in {file!r}")
        chunks.append(StoredChunk(offset, size, file, start, length))
    return StoredTensor(dtype, shape, tuple(chunks))


def _check_backend(folder: Path) -> None:
    path = folder / "metadata.json"
    try:
        backend = json.loads(path.read_bytes()).get("sharded_backend")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointMismatch(f"{path} cannot be read: {error}") from error
    if backend != BACKEND["sharded_backend"]:
        raise CheckpointMismatch(f"{path} names the format {backend!r}: save the checkpoint as torch_dist")


def holds_optimizer(tensors: Mapping[str, StoredTensor]) -> bool:
    """Return whether the tensors of an optimizer are among these."""
    return any(name.startswith(OPTIMIZER) for name in tensors)
