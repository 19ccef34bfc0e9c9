"""`optimizer_digest`: the digest of an optimizer's state, which does not depend on the number of ranks.

One of the data parallel ranks hashes each tensor as a whole. A trainer with a different number of ranks can therefore
recognize a checkpoint.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

import torch
import torch.distributed as dist
from megatron.core.optimizer import ChainedOptimizer
from torch import Tensor

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.rules import Rule
from actors.megatron.holders import of_whole_model
from actors.megatron.sharded_state import Shard, group_numbers, is_sharded, shards, step_count
from actors.megatron.weights import digest_tensors, gathered, is_tied_copy, model_rules, named_parameters, named_tensors
from actors.step.place import Axis, Place
from schemas.doc import doc
from storage.digests import weights_digest


class Piece(NamedTuple):
    """This rank's part of a tensor of the state."""

    name: Annotated[str, doc("Name from the parameter's index in its group, equal in every run of the same model.")]
    parameter: Annotated[str, doc("Name of the parameter.")]
    shape: Annotated[torch.Size, doc("Shape of the whole tensor.")]
    part: Annotated[Tensor, doc("This rank's elements: flat from element `start` on, or the whole tensor.")]
    start: Annotated[int | None, doc("First element of `part`; None if `part` is the whole tensor.")] = None


def optimizer_digest(
    optimizer: ChainedOptimizer,
    model: torch.nn.Module,
    architecture: Architecture,
    place: Place,
    *,
    weights: bool = False,
) -> str:
    """Return the sha256 (hex) of a Megatron optimizer's state: moments, step counts and any float32 main weights.

    Collective over all ranks; the result is the same on each. weights: include the model's weights.
    """
    source = _of_shards if is_sharded(optimizer) else _of_replicas
    pieces = list(source(optimizer, model, place))
    if weights:
        pieces += [Piece(name, name, tensor.shape, tensor.detach()) for name, tensor in named_tensors(model)]
    rules = {} if place.world_size == 1 else model_rules(model, architecture)
    mine = digest_tensors(_own(pieces, rules, place))
    return weights_digest({name: digest for digests in place.of_each_rank(mine) for name, digest in digests.items()})


def _of_replicas(optimizer: ChainedOptimizer, model: torch.nn.Module, place: Place) -> Iterator[Piece]:
    """Yield the pieces of a state that every data parallel rank holds as a whole."""
    numbers = group_numbers(optimizer)
    names = {}
    for name, parameter in named_parameters(model):
        names[id(parameter)] = names[id(getattr(parameter, "main_param", parameter))] = name
    whole = dict[str, str]()
    if place.size(Axis.EXPERT) > 1 or place.size(Axis.PIPELINE) > 1:
        own = {
            names[id(parameter)]: numbers[chained, index]
            for chained, part in enumerate(optimizer.chained_optimizers)
            for index, group in enumerate(part.optimizer.param_groups)
            for parameter in group["params"]
            if id(parameter) in names
        }
        whole = _prefixes({name: own.get(name) for name, _ in named_parameters(model)}, place)
    for chained, part in enumerate(optimizer.chained_optimizers):
        inner = part.optimizer
        for group_index, group in enumerate(inner.param_groups):
            for index, parameter in enumerate(group["params"]):
                if is_tied_copy(parameter):
                    continue
                of = names.get(id(parameter), "")
                prefix = whole.get(of, f"{chained}.{group_index}.{index}")
                if hasattr(part, "fp32_from_float16_groups"):
                    yield Piece(f"{prefix}.main", of, parameter.shape, parameter.detach())
                for name, value in inner.state[parameter].items():
                    if isinstance(value, Tensor):
                        yield Piece(f"{prefix}.{name}", of, value.shape, value)


def _prefixes(groups: Mapping[str, int | None], place: Place) -> dict[str, str]:
    """Return the beginning of the names of each trained parameter's state, as of a single rank with the whole model.

    groups: the parameter group of each parameter that this rank has; None if it is frozen. Ranks of experts may have no
    trained parameter in common, so that frozen ones give the order. Collective.
    """
    counted = Counter[int]()
    prefixes = {}
    for name, group in of_whole_model(groups, place).items():
        if group is None:
            continue
        prefixes[name] = f"0.{group}.{counted[group]}"
        counted[group] += 1
    return prefixes


class _Layout(NamedTuple):
    groups: dict[str, int]
    """Parameter group by parameter."""
    kinds: dict[str, int]
    """Number of dimensions by tensor of the state."""
    step: int


def _of_shards(optimizer: ChainedOptimizer, model: torch.nn.Module, place: Place) -> Iterator[Piece]:
    """Yield the pieces of a state that is divided over data parallel ranks, under the names of an undivided state."""
    named = list(named_parameters(model))
    trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    held = {id(shard.parameter): shard for shard in shards(optimizer)}
    own = _Layout(
        groups={name: held[id(parameter)].group for name, parameter in trained if id(parameter) in held},
        kinds={kind: value.dim() for shard in held.values() for kind, value in _tensors(shard).items()},
        step=step_count(optimizer),
    )
    layouts = place.of_group(Axis.REPLICAS, own)
    if place.size(Axis.EXPERT) > 1:  # their ranks share other parameters
        layouts += place.of_group(Axis.EXPERT_DATA, own)
    groups = {name: index for layout in layouts for name, index in layout.groups.items()}
    kinds = {kind: axes for layout in layouts for kind, axes in layout.kinds.items()}
    step = torch.tensor(float(max(layout.step for layout in layouts)))
    prefixes = _prefixes({name: groups[name] if parameter.requires_grad else None for name, parameter in named}, place)
    for name, parameter in trained:
        nothing = torch.empty(0, device=parameter.device)
        shard = held.get(id(parameter))
        tensors, start = (_tensors(shard), shard.start) if shard else ({}, 0)
        for kind, axes in sorted(kinds.items()):
            if axes == 0:
                yield Piece(f"{prefixes[name]}.{kind}", name, step.shape, step)
            else:
                yield Piece(f"{prefixes[name]}.{kind}", name, parameter.shape, tensors.get(kind, nothing), start)


def _tensors(shard: Shard) -> dict[str, Tensor]:
    is_half = shard.parameter.dtype != shard.main.dtype
    state = {kind: value for kind, value in shard.state.items() if isinstance(value, Tensor)}
    return state | ({"main": shard.main} if is_half else {})


def _own(pieces: list[Piece], rules: Mapping[str, Rule], place: Place) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that this rank hashes, by name.

    All ranks that have a tensor get one in turn, so that they hash in parallel; those of experts are other ranks.
    """
    sides = dict[bool, list[Piece]]({False: [], True: []})
    for piece in pieces:
        sides[piece.parameter in rules and rules[piece.parameter].expert is not None].append(piece)
    yield from _in_turn(sides[False], rules, place, Axis.REPLICAS, Axis.TENSOR)
    yield from _in_turn(sides[True], rules, place, Axis.EXPERT_DATA, Axis.EXPERT_TENSOR)


def _in_turn(
    pieces: list[Piece], rules: Mapping[str, Rule], place: Place, copies: Axis, axis: Axis
) -> Iterator[tuple[str, Tensor]]:
    """Yield this rank's tensors. copies: the ranks with the same parts. axis: the ranks that each have a part."""
    replicas, cut = place.group(copies), place.group(axis)
    ranks = replicas.size()
    for first in range(0, len(pieces), ranks):
        own = None
        for owner, piece in enumerate(pieces[first : first + ranks]):
            whole = _over_data_ranks(piece, owner, replicas)
            if owner == replicas.rank():
                own = piece, whole
        if own is None:
            continue
        piece, whole = own
        if cut.size() > 1 and whole.dim() and (rule := rules.get(piece.parameter)) and rule.cut is not None:
            whole = rule.merge(rule.split(gathered(rule, whole.contiguous(), place)), 0, 1)
        if cut.rank() == 0:
            yield piece.name, whole


def _over_data_ranks(piece: Piece, owner: int, group: dist.ProcessGroup) -> Tensor:
    """Return the whole tensor, at least on `owner`."""
    if piece.start is None:
        return piece.part
    flat = torch.zeros(piece.shape.numel(), device=piece.part.device)
    flat[piece.start : piece.start + piece.part.numel()] = piece.part
    if group.size() > 1:  # as integers: a sum of floats would lose the sign of a zero
        dist.reduce(flat.view(torch.int32), dist.get_global_rank(group, owner), group=group)
    return flat.view(piece.shape)
