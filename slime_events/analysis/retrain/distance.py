"""`Distance`: by how much two sets of weights differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.errors import CheckpointMismatch
from storage.weights.files import TensorView, view
from storage.weights.store import TensorBytes

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


class Distance(msgspec.Struct, frozen=True):
    """max_abs: the largest difference of one number, which is in `tensor`. relative_l2: |found - recorded| / |recorded|
    over all numbers of all tensors.
    """

    max_abs: float
    relative_l2: float
    tensor: str


def distance(recorded: Mapping[str, TensorView], found: Iterable[TensorBytes]) -> Distance:
    """Of found weights from recorded ones, in float64, tensor by tensor. Raises CheckpointMismatch for others."""
    largest, where, apart, whole, names = 0.0, "", 0.0, 0.0, set()
    for name, dtype, shape, data in found:
        other = recorded.get(name)
        if other is None or (other.dtype, other.shape) != (dtype, tuple(shape)):
            raise CheckpointMismatch(f"tensor {name!r} is {dtype} {list(shape)} here, and not in the recorded weights")
        names.add(name)
        theirs, ours = _numbers(other), _numbers(view(name, dtype, shape, data))
        delta = np.abs(ours - theirs)
        if delta.size and (most := float(delta.max())) > largest:
            largest, where = most, name
        apart += float(np.dot(delta, delta))
        whole += float(np.dot(theirs, theirs))
    if missing := recorded.keys() - names:
        raise CheckpointMismatch(f"tensor {min(missing)!r} is in the recorded weights alone")
    return Distance(largest, math.sqrt(apart / whole) if whole else math.inf, where)


def _numbers(tensor: TensorView) -> npt.NDArray[np.float64]:
    if tensor.dtype == "BF16":  # the upper half of a float32
        wide: npt.NDArray[Any] = np.frombuffer(tensor.data, "<u2").astype("<u4") << 16
        return wide.view("<f4").astype(np.float64)
    return np.frombuffer(tensor.data, _DTYPES[tensor.dtype]).astype(np.float64)
