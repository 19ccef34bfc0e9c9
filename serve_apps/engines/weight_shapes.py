"""Compare the shapes of new weights with those of an engine's model, before SGLang loads them."""

import math
from pathlib import Path

from schemas.errors import EngineError, WeightsDamaged
from storage.weights.files import open_shard

Shapes = dict[str, tuple[int, ...]]
TIED = "lm_head.weight"
"""May be missing: it equals the embedding if a model ties the two."""


def shapes_in(folder: Path) -> Shapes:
    """Return every tensor's shape from the files' headers. Raises EngineError without safetensors, or for a truncated
    file.

    SGLang 0.5.23 checks weights while it copies them over the old ones, and its scheduler dies if they do not fit. So
    they are compared with the engine's checkpoint first.
    """
    shapes: Shapes = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            tensors = dict(open_shard(path))
            with path.open("rb") as file:
                end = 8 + int.from_bytes(file.read(8), "little") + sum(view.data.nbytes for view in tensors.values())
        except (WeightsDamaged, OSError) as error:
            raise EngineError(str(error)) from error
        if path.stat().st_size != end:
            raise EngineError(f"{path} has {path.stat().st_size} bytes, but its header needs {end}")
        shapes |= {name: view.shape for name, view in tensors.items()}
    if not shapes:
        raise EngineError(f"no safetensors in {folder}")
    return shapes


def misfit(model: Shapes, weights: Shapes) -> str | None:
    """Return the first reason why `weights` cannot replace those of `model`; None if they can."""
    for name, shape in weights.items():
        if name not in model and name != TIED:
            return f"tensor {name} is not in the model"
        if name in model and model[name] != shape:
            return f"tensor {name} has shape {list(shape)} ({math.prod(shape)} numbers), the model {list(model[name])}"
    missing = sorted(model.keys() - weights.keys() - {TIED})
    return f"tensor {missing[0]} is missing ({len(missing)} in all)" if missing else None
