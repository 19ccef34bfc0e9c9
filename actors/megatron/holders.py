"""`holders`: which rank has a tensor, if pipeline or expert parallel ranks have different ones."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple, TypeVar

import torch

from actors.step.place import Axis, Place
from schemas.doc import doc

T = TypeVar("T")


class Holder(NamedTuple):
    """The source of a tensor."""

    rank: Annotated[int, doc("A rank that has the tensor, or its part of it.")]
    dtype: torch.dtype


def holders(tensors: Mapping[str, torch.Tensor], place: Place) -> dict[str, Holder]:
    """Return the holder of each tensor of the whole model, by name; see `of_whole_model`.

    For rank 0 the holder is the rank that sends the whole tensor (actors/megatron/weights.py).
    """
    return of_whole_model({name: Holder(place.rank, tensor.dtype) for name, tensor in tensors.items()}, place)


def of_whole_model(mine: Mapping[str, T], place: Place) -> dict[str, T]:
    """Gather values by the names of tensors, from the ranks that together have the whole model.

    Collective along the expert and the pipeline axis. The order is that of a model in one piece. Of a tensor that
    several ranks have, the first rank's value is taken.
    """
    whole = dict(mine)
    for axis in (Axis.EXPERT, Axis.PIPELINE):
        if place.size(axis) > 1:
            first, *rest = place.of_group(axis, whole)
            for other in rest:
                first = _union(first, other)
            whole = first
    return dict(sorted(whole.items(), key=_layer)) if place.size(Axis.PIPELINE) > 1 else whole


def _union(first: Mapping[str, T], second: Mapping[str, T]) -> dict[str, T]:
    """Add the names that only `second` has, before the next name that both have."""
    added, new = dict[str, list[str]](), list[str]()
    for name in second:
        if name in first:
            added[name], new = new, []
        else:
            new.append(name)
    order = [*(name for shared in first for name in (*added.get(shared, ()), shared)), *new]
    return {name: first[name] if name in first else second[name] for name in order}


def _layer(named: tuple[str, object]) -> float:
    """Return the place of a tensor: the embedding, then the layers, then the rest."""
    name, _ = named
    match = re.match(r"decoder\.layers\.(\d+)\.", name)
    return int(match[1]) if match else -1 if name.startswith("embedding.") else math.inf
