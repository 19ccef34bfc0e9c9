"""`optimizer_digest`: the digest of an optimizer's state, the same however many ranks hold it.

Each tensor is hashed whole, as a single rank has it, and by one of the data parallel ranks. So a trainer with another
number of ranks knows a checkpoint again.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from actors.megatron.architecture import Architecture
from actors.megatron.sharded_state import is_sharded, shards, step_count
from actors.megatron.trainee import Place
from actors.megatron.weights import digest_tensors, model_rules, named_parameters
from storage.digests import weights_digest


class Piece(NamedTuple):
    """A tensor of the state. name: by its parameter's place in the parameter groups, which is the same in every run of
    the same model. part: of it, what this rank holds, flat and from element `start` on; start None: all of it.
    """

    name: str
    parameter: str
    shape: torch.Size
    part: Tensor
    start: int | None = None


def optimizer_digest(
    optimizer: Any, model: torch.nn.Module, architecture: Architecture, place: Place, *, weights: bool = False
) -> str:
    """Hex sha256 of a Megatron optimizer's state: moments, step counts, and float32 main weights if any. Collective, on
    all ranks; the same on each. weights: with the model's.
    """
    pieces = list(_of_shards(optimizer, model, place.data) if is_sharded(optimizer) else _of_replicas(optimizer, model))
    if weights:
        for name, parameter in named_parameters(model):
            pieces.append(Piece(name, name, parameter.shape, parameter.detach()))
    mine = digest_tensors(_own(pieces, model, architecture, place))
    return weights_digest({name: one for digests in place.of_each_rank(mine) for name, one in digests.items()})


def _of_replicas(optimizer: Any, model: torch.nn.Module) -> Iterator[Piece]:
    """Of a state that every data parallel rank has."""
    names = {}
    for name, parameter in named_parameters(model):
        names[id(parameter)] = names[id(getattr(parameter, "main_param", parameter))] = name
    for chained, part in enumerate(optimizer.chained_optimizers):
        inner = part.optimizer
        for group_index, group in enumerate(inner.param_groups):
            for index, parameter in enumerate(group["params"]):
                prefix = f"{chained}.{group_index}.{index}"
                of = names.get(id(parameter), "")
                if hasattr(part, "fp32_from_float16_groups"):
                    yield Piece(f"{prefix}.main", of, parameter.shape, parameter.detach())
                for name, value in inner.state[parameter].items():
                    if isinstance(value, Tensor):
                        yield Piece(f"{prefix}.{name}", of, value.shape, value)


def _of_shards(optimizer: Any, model: torch.nn.Module, group: dist.ProcessGroup) -> Iterator[Piece]:
    """Of a state that data parallel ranks share, under the names that it has without that."""
    trained = [(name, parameter) for name, parameter in named_parameters(model) if parameter.requires_grad]
    held = {id(shard.parameter): shard for shard in shards(optimizer)}
    known: dict[str, Any] = {
        "groups": {name: held[id(one)].group for name, one in trained if id(one) in held},
        "kinds": {kind: value.dim() for shard in held.values() for kind, value in _tensors(shard).items()},
        "step": step_count(optimizer),
    }
    everyone = [known] * group.size()
    dist.all_gather_object(everyone, known, group)
    groups = {name: index for one in everyone for name, index in one["groups"].items()}
    kinds = {kind: axes for one in everyone for kind, axes in one["kinds"].items()}
    step = torch.tensor(float(max(one["step"] for one in everyone)))
    counted = Counter[int]()
    for name, parameter in trained:
        prefix = f"0.{groups[name]}.{counted[groups[name]]}"
        counted[groups[name]] += 1
        nothing = torch.empty(0, device=parameter.device)
        shard = held.get(id(parameter))
        tensors, start = (_tensors(shard), shard.start) if shard else ({}, 0)
        for kind, axes in sorted(kinds.items()):
            if axes == 0:
                yield Piece(f"{prefix}.{kind}", name, step.shape, step)
            else:
                yield Piece(f"{prefix}.{kind}", name, parameter.shape, tensors.get(kind, nothing), start)


def _tensors(shard: Any) -> dict[str, Tensor]:
    is_half = shard.parameter.dtype != shard.main.dtype
    state = {kind: value for kind, value in shard.state.items() if isinstance(value, Tensor)}
    return state | ({"main": shard.main} if is_half else {})


def _own(
    pieces: list[Piece], model: torch.nn.Module, architecture: Architecture, place: Place
) -> Iterator[tuple[str, Tensor]]:
    """The tensors that this rank hashes, by name. All have one at a time, so that they hash side by side."""
    rules = model_rules(model, architecture) if place.tensor.size() > 1 else {}
    ranks = place.data.size()
    for first in range(0, len(pieces), ranks):
        own = None
        for owner, piece in enumerate(pieces[first : first + ranks]):
            whole = _over_data_ranks(piece, owner, place.data)
            if owner == place.data.rank():
                own = piece, whole
        if own is None:
            continue
        piece, whole = own
        if whole.dim() and (rule := rules.get(piece.parameter)) and rule.cut is not None:
            parts = [torch.empty_like(whole) for _ in range(place.tensor.size())]
            dist.all_gather(parts, whole.contiguous(), place.tensor)
            whole = rule.merge(rule.split(parts), 0, 1)
        if place.tensor.rank() == 0:
            yield piece.name, whole


def _over_data_ranks(piece: Piece, owner: int, group: dist.ProcessGroup) -> Tensor:
    """The whole tensor, on `owner` at least."""
    if piece.start is None:
        return piece.part
    flat = torch.zeros(piece.shape.numel(), device=piece.part.device)
    flat[piece.start : piece.start + piece.part.numel()] = piece.part
    if group.size() > 1:  # as whole numbers: a sum of floats would lose the sign of a zero
        dist.reduce(flat.view(torch.int32), dist.get_global_rank(group, owner), group=group)
    return flat.view(piece.shape)
