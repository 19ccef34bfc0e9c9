"""What a folder of safetensors holds, by its headers alone.

SGLang 0.5.23 checks weights while it copies them over the old ones, and its scheduler dies where they do not fit. So
they are compared with the engine's checkpoint before they are given to it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from schemas.errors import EngineError

Shapes = dict[str, tuple[int, ...]]

TIED = "lm_head.weight"
"""May be left out: it is the embedding again where a model ties the two."""


def shapes_in(folder: Path) -> Shapes:
    """Every tensor's shape. Raises EngineError for a folder without safetensors or a file that is cut short."""
    shapes: Shapes = {}
    for path in sorted(folder.glob("*.safetensors")):
        shapes |= _shapes_of_file(path)
    if not shapes:
        raise EngineError(f"no safetensors in {folder}")
    return shapes


def _shapes_of_file(path: Path) -> Shapes:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length) if length < 100_000_000 else b"")
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"{path} is not a safetensors file: {error}") from error
    if path.stat().st_size != 8 + length + end:
        raise EngineError(f"{path} has {path.stat().st_size} bytes, its header says {8 + length + end}")
    return shapes


def misfit(wanted: Shapes, given: Shapes) -> str | None:
    """The first reason why `given` cannot take the place of `wanted`, or None."""
    for name, shape in given.items():
        if name not in wanted and name != TIED:
            return f"tensor {name} is not in the model"
        if name in wanted and wanted[name] != shape:
            return f"tensor {name} has shape {list(shape)} ({math.prod(shape)} numbers), the model {list(wanted[name])}"
    missing = sorted(wanted.keys() - given.keys() - {TIED})
    return f"tensor {missing[0]} is missing ({len(missing)} in all)" if missing else None
