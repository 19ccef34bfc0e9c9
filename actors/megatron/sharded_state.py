"""The checkpoint format of Megatron's distributed optimizer, whose state is divided over data parallel ranks.

Megatron-core has three formats for this state. One needs Transformer Engine or Apex, one gathers the whole state (12
bytes per parameter) on every host, and one is tied to its tensor parallel size. Here each rank writes its part as
blocks of the same tensors that an undivided optimizer writes as a whole. Any number of data and tensor parallel ranks
can therefore read a checkpoint, with or without the distributed optimizer.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple, Self

import torch
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
from megatron.core.optimizer import ChainedOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

from actors.step.place import Place
from schemas.doc import doc

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and size of a block in a tensor."""


MAIN_WEIGHTS = "fp32_from_fp16_params"
"""Megatron's name of the main weights in the state of an undivided optimizer: lists by parameter group."""


class Shard(NamedTuple):
    """This rank's part of a parameter's optimizer state."""

    parameter: Annotated[torch.nn.Parameter, doc("The model's parameter.")]
    group: Annotated[int, doc("Index of the parameter group.")]
    start: Annotated[int, doc("First element of this rank's part of the flat parameter.")]
    main: Annotated[Tensor, doc("float32 [elements]: main weights, which the optimizer updates")]
    state: Annotated[dict[str, Any], doc("State by Megatron's name: tensors [elements] and step counts.")]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors of a checkpoint by Megatron's name, with main weights only if they are not the model's own."""
        own = {} if self.parameter.dtype == self.main.dtype else {"fp32_param": self.main}
        return own | {name: value for name, value in self.state.items() if torch.is_tensor(value) and value.dim()}


def is_sharded(optimizer: ChainedOptimizer) -> bool:
    """Return whether the optimizer is Megatron's distributed optimizer."""
    return all(isinstance(part, DistributedOptimizer) for part in optimizer.chained_optimizers)


def group_numbers(optimizer: ChainedOptimizer) -> dict[tuple[int, int], int]:
    """Return the number of a parameter group in an optimizer of all parameters, by its part and its number there.

    Megatron has a part of its own for the experts that only some ranks have. Parameters with the same weight decay and
    rates would be one group.
    """
    parts = [part.optimizer.param_groups for part in optimizer.chained_optimizers]
    if not any(group.get("is_expert_parallel") for groups in parts for group in groups):
        return {(part, number): number for part, groups in enumerate(parts) for number in range(len(groups))}

    def kind(group: Mapping[str, Any]) -> tuple[bool, Any, Any, Any]:
        return group["wd_mult"] != 1.0, group["wd_mult"], group["max_lr"], group["min_lr"]

    kinds = sorted({kind(group) for groups in parts for group in groups})
    return {
        (part, number): kinds.index(kind(group))
        for part, groups in enumerate(parts)
        for number, group in enumerate(groups)
    }


def shards(optimizer: ChainedOptimizer) -> Iterator[Shard]:
    """Yield this rank's shards of a distributed optimizer."""
    numbers = group_numbers(optimizer)
    for index, part in enumerate(optimizer.chained_optimizers):
        halves = (part.model_float16_groups, part.shard_fp32_from_float16_groups)
        whole = (part.model_fp32_groups, part.shard_fp32_groups)
        for models, mains in (halves, whole):
            for group, (of_model, of_main) in enumerate(zip(models, mains, strict=True)):
                for parameter, main in zip(of_model, of_main, strict=True):
                    buffer, dtype, bucket = part.model_param_gbuf_map[parameter]
                    start = part.gbuf_ranges[buffer][dtype][bucket]["param_map"][parameter]["param"].start
                    yield Shard(parameter, numbers[index, group], start, main.detach(), part.optimizer.state[main])


class StepCounts(NamedTuple):
    """Numbers of Adam's steps on a rank; 0 if it has not counted any."""

    of_groups: Annotated[int, doc("Transformer Engine counts per parameter group, if the rank trains one of its.")]
    of_parameters: Annotated[int, doc("torch counts per parameter.")]

    @classmethod
    def of(cls, optimizer: ChainedOptimizer) -> Self:
        """Return this rank's counts, which are the same for all groups or parameters."""
        inner = [part.optimizer for part in optimizer.chained_optimizers]
        of_groups = [group["step"] for part in inner for group in part.param_groups if "step" in group]
        of_parameters = [state["step"] for part in inner for state in part.state.values() if "step" in state]
        return cls._of(of_groups, of_parameters)

    @classmethod
    def saved(cls, entries: Mapping[Any, Any]) -> Self:
        """Return the counts in a checkpoint. Raises ValueError if they differ, as all parameters share one.

        entries: what every rank reads of the optimizer. Experts that were on several ranks have entries of their own.
        Megatron stores no count of 0.
        """
        parts = [entries[part] for part in entries if isinstance(part, int)] or [entries]
        inner = [part.get("optimizer", part) for part in parts]
        of_groups = [group["step"] for part in inner for group in part["param_groups"] if "step" in group]
        states = [part.get("state", {}) for part in inner]
        of_parameters = [state["common_step"] for state in states if "common_step" in state]
        for counts in (of_groups, of_parameters):
            if len(distinct := {int(count) for count in counts}) > 1:
                raise ValueError(f"its parameters have taken different numbers of optimizer steps: {sorted(distinct)}")
        return cls._of(of_groups, of_parameters)

    @classmethod
    def _of(cls, of_groups: Sequence[Any], of_parameters: Sequence[Any]) -> Self:
        return cls(int(next(iter(of_groups), 0)), int(next(iter(of_parameters), 0)))


def step_count(optimizer: ChainedOptimizer) -> int:
    """Return the number of Adam's steps on this rank; 0 if it trains no parameter."""
    return max(StepCounts.of(optimizer))


def agree_on_steps(state: dict[Any, Any], optimizer: ChainedOptimizer, place: Place) -> None:
    """Put the number of Adam's steps into the entries of a state that every rank reads.

    Rank 0 writes them, and may have no trained parameter, and so no count. Collective.
    """
    counts = place.of_each_rank(StepCounts.of(optimizer))
    of_groups, of_parameters = (max(of_ranks) for of_ranks in zip(*counts, strict=True))
    if is_sharded(optimizer):  # its groups have no count in a checkpoint
        of_groups, of_parameters = 0, max(of_groups, of_parameters)
    for entries in parts_of(state, optimizer):
        inner = entries.get("optimizer", entries)
        if of_parameters:
            inner["state"]["common_step"] = torch.tensor(float(of_parameters))
        for group in inner["param_groups"] if of_groups else ():
            group["step"] = of_groups


def sharded_state(optimizer: ChainedOptimizer, model_state: Mapping[str, Any]) -> dict[Any, Any]:
    """Return the state that this rank writes to, or reads from, a checkpoint; reading fills it in place.

    `agree_on_steps` adds the number of steps to a state that is written.

    model_state: Megatron's sharded state of the model, which gives names and offsets.
    """
    config = optimizer.chained_optimizers[0].config
    kinds = (ShardedTensor, ShardedTensorFactory)
    places = {id(place.data): place for place in nested_values(model_state) if isinstance(place, kinds)}
    blocks = {
        f"{index}.{name}": list(_blocks(places[id(shard.parameter)], f"optimizer.state.{name}", flat, shard.start))
        for index, shard in enumerate(shards(optimizer))
        for name, flat in shard.tensors.items()
    }
    # Every rank reads these entries, at the same keys as those of an undivided optimizer.
    common: list[dict[Any, Any]] = []
    for part in optimizer.chained_optimizers:
        groups = [
            {name: value for name, value in group.items() if name not in ("params", "step")}
            for group in part.optimizer.param_groups
        ]
        state: dict[str, Any] = {"param_groups": groups, "state": {}}
        common.append({"optimizer": state} if config.bf16 or config.fp16 else state)
    entries: dict[Any, Any] = common[0] if len(common) == 1 else dict(enumerate(common))
    return entries | {"blocks": blocks}


def parts_of(state: dict[Any, Any], optimizer: ChainedOptimizer) -> list[dict[Any, Any]]:
    """Return the entries of each part of the optimizer, of which there are two if experts are on several ranks."""
    parts = len(optimizer.chained_optimizers)
    return [state] if parts == 1 else [state[part] for part in range(parts)]


def leave_out_empty_groups(state: dict[Any, Any], optimizer: ChainedOptimizer) -> None:
    """Number the groups of float32 main weights in an undivided state, without those of which this rank has nothing.

    Megatron stores an empty list for such a group, and refuses to load it into the group of another rank.
    """
    for entries in parts_of(state, optimizer):
        if (groups := entries.get(MAIN_WEIGHTS)) is not None:
            entries[MAIN_WEIGHTS] = {number: group for number, group in enumerate(groups) if group}


def add_empty_groups(state: dict[Any, Any], optimizer: ChainedOptimizer) -> None:
    """Undo `leave_out_empty_groups` in a loaded state."""
    for entries, part in zip(parts_of(state, optimizer), optimizer.chained_optimizers, strict=True):
        if hasattr(part, "fp32_from_float16_groups"):
            loaded = entries.get(MAIN_WEIGHTS, {})
            entries[MAIN_WEIGHTS] = [loaded.get(number, []) for number in range(len(part.fp32_from_float16_groups))]


def shard_views(state: Mapping[str, Any]) -> dict[str, list[Tensor]]:
    """Return the memory of the blocks of `sharded_state`, by name."""
    return {name: [block.data for block in blocks] for name, blocks in state.get("blocks", {}).items()}


def load_sharded_state(
    optimizer: ChainedOptimizer, loaded: dict[Any, Any], steps: StepCounts, views: Mapping[str, Sequence[Tensor]]
) -> None:
    """Copy a loaded state into a distributed optimizer. views: the `shard_views` of the state that was requested."""
    for name, blocks in views.items():
        for view, tensor in zip(blocks, loaded["blocks"][name], strict=True):
            view.copy_(tensor)
    step = max(steps)
    for group in optimizer.param_groups:
        if "step" in group:
            group["step"] = step
    for part in optimizer.chained_optimizers:
        for state in part.optimizer.state.values():
            if "step" in state:
                state["step"].fill_(float(step))


def load_whole_state(optimizer: ChainedOptimizer, loaded: dict[Any, Any], steps: StepCounts, *, counts: bool) -> None:
    """Load the tensors of a state into an undivided optimizer, whose groups keep their learning rates and weight decay.

    Its parts may be others than those that were saved: tensors have the same names in all. counts: the optimizer
    counts steps.
    """
    for entries, part in zip(parts_of(loaded, optimizer), optimizer.chained_optimizers, strict=True):
        inner = entries.get("optimizer", entries)
        state = inner.setdefault("state", {})  # there is none if this rank trains none of the part's parameters
        if counts:
            state["common_step"] = torch.tensor(float(steps.of_parameters))
        for group, own in zip(inner["param_groups"], part.optimizer.param_groups, strict=True):
            group |= {name: value for name, value in own.items() if name not in ("params", "step")}
            if steps.of_groups:
                group["step"] = steps.of_groups
    add_empty_groups(loaded, optimizer)
    optimizer.load_state_dict(loaded)


def _blocks(
    place: ShardedTensor | ShardedTensorFactory, prefix: str, flat: Tensor, start: int
) -> Iterator[ShardedTensor]:
    """Divide `flat`, a parameter's elements from `start` on, into rectangular blocks of the checkpoint's tensors."""
    key = f"{prefix}.{place.key}"
    if isinstance(place, ShardedTensorFactory):  # a parameter that is several tensors in the checkpoint
        whole = torch.empty_like(place.data, dtype=flat.dtype, device="meta")
        tensors = list(nested_values({"built": replace(place, key=key, data=whole).build()}))
    else:
        tensors = [replace(place, key=key, data=None, dtype=flat.dtype)]
    for tensor in tensors:
        first = tensor.data.storage_offset() if tensor.data is not None else 0
        size = math.prod(tensor.local_shape)
        begin, end = max(start, first), min(start + flat.numel(), first + size)
        if begin < end:
            yield from _cut(tensor, flat[begin - start : end - start], begin - first)


def _cut(tensor: ShardedTensor, flat: Tensor, start: int) -> Iterator[ShardedTensor]:
    lead = (0,) * tensor.prepend_axis_num, (1,) * tensor.prepend_axis_num
    taken = 0
    for offset, size in boxes(tensor.local_shape, start, start + flat.numel()):
        shape, count = (*lead[1], *size), math.prod(size)
        yield replace(
            tensor,
            data=flat[taken : taken + count].view(shape),
            local_shape=shape,
            global_offset=tuple(map(sum, zip(tensor.global_offset, (*lead[0], *offset), strict=True))),
            axis_fragmentations=None,  # blocks have different sizes, so they form no grid
            replica_id=(*tensor.replica_id[:-1], 0),
            prepend_axis_num=0,
        )
        taken += count


def boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Yield blocks that cover elements [start, stop) of a contiguous tensor, in order.

    There is at most one block, plus two for each axis but the last.
    """
    if len(shape) == 1:
        yield (start,), (stop - start,)
        return
    inner = math.prod(shape[1:])
    first, last = -(-start // inner), stop // inner
    if first > last:  # within one row
        yield from _in_row(shape, last, start - last * inner, stop - last * inner)
        return
    if start < first * inner:
        yield from _in_row(shape, first - 1, start - (first - 1) * inner, inner)
    if first < last:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])
    if stop > last * inner:
        yield from _in_row(shape, last, 0, stop - last * inner)


def _in_row(shape: Sequence[int], row: int, start: int, stop: int) -> Iterator[Box]:
    for offset, size in boxes(shape[1:], start, stop):
        yield (row, *offset), (1, *size)
