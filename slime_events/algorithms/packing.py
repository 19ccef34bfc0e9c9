"""Samples into micro batches, micro batches onto data parallel ranks. Pure Python, needs no torch.

Pack first, distribute second: a step's samples are packed once, the number of micro batches is brought to a multiple
of the ranks, and only then is each given to a rank, so that every rank runs equally many.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from schemas.errors import TrainerError
from slime_events.algorithms.balance import karmarkar_karp


@dataclass(frozen=True, slots=True)
class PackingRule:
    """max_tokens: tokens of one micro batch (max_tokens_per_gpu x context parallel size); None packs
    `micro_batch_size` samples each instead. align: micro batches per rank come in multiples of it (the micro batch
    group of virtual pipeline stages; 1 without them). balance: even out tokens over ranks, else deal in turn.
    """

    dp_size: int = 1
    max_tokens: int | None = None
    micro_batch_size: int = 1
    align: int = 1
    balance: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who trains what, when.

    partitions[rank]: indices of samples in the order that rank trains them. micro_batches[rank]: its micro batches in
    order, as places in `partitions[rank]`. num_microbatches[step]: micro batches per rank. rollouts[step]: rollouts
    of the step over all ranks, what its loss is divided by.
    """

    partitions: list[list[int]]
    micro_batches: list[list[list[int]]]
    num_microbatches: list[int]
    rollouts: list[int]


def first_fit(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices by micro batch: each sample goes into the first that still has room; a longer one is alone."""
    bins: list[list[int]] = []
    sums: list[int] = []
    for index, length in enumerate(lengths):
        place = next((j for j, used in enumerate(sums) if used + length <= max_tokens), None)
        if place is None:
            bins.append([index])
            sums.append(length)
        else:
            bins[place].append(index)
            sums[place] += length
    return bins


def split_largest(bins: Sequence[Sequence[int]], count: int, lengths: Sequence[int]) -> list[list[int]]:
    """As many bins as `count`: the heaviest with two samples or more is halved in place until there are.

    The lighter half goes to the end. Raises TrainerError where there are fewer samples than that.
    """
    result = [list(samples) for samples in bins]
    while len(result) < count:
        splittable = [place for place, samples in enumerate(result) if len(samples) > 1]
        if not splittable:
            raise TrainerError(f"{len(result)} samples cannot make {count} micro batches: raise global_batch_size")
        place = max(splittable, key=lambda j: (sum(lengths[i] for i in result[j]), -j))
        samples = result[place]
        heavier, lighter = karmarkar_karp([lengths[i] for i in samples], 2)
        result[place] = [samples[i] for i in heavier]
        result.append([samples[i] for i in lighter])
    return result


def micro_batches(lengths: Sequence[int], rule: PackingRule) -> list[list[int]]:
    """The micro batches of one step as indices into `lengths` (tokens per sample), a multiple of ranks x align."""
    multiple = rule.dp_size * rule.align
    if rule.max_tokens is not None:
        bins = first_fit(lengths, rule.max_tokens)
        return split_largest(bins, -(-len(bins) // multiple) * multiple, lengths)
    size = rule.micro_batch_size
    bins = [list(range(start, min(start + size, len(lengths)))) for start in range(0, len(lengths), size)]
    if len(bins) % multiple:
        raise TrainerError(
            f"{len(lengths)} samples in micro batches of {size} make {len(bins)}, not a multiple of {multiple} "
            f"({rule.dp_size} data parallel ranks x {rule.align}): change micro_batch_size or use_dynamic_batch_size"
        )
    return bins


def steps_of(rollouts: Sequence[Hashable], global_batch_size: int) -> list[list[int]]:
    """Samples of each optimizer step: `global_batch_size` rollouts, whole; rollouts that fill no step are left out.

    `rollouts[i]` is the rollout of sample i; fan-out siblings share one and are trained together.
    Raises TrainerError with fewer rollouts than one step takes.
    """
    members: dict[Hashable, list[int]] = {}
    for sample, rollout in enumerate(rollouts):
        members.setdefault(rollout, []).append(sample)
    groups = list(members.values())
    count = len(groups) // global_batch_size
    if count == 0:
        raise TrainerError(f"{len(groups)} rollouts do not fill one step of global_batch_size {global_batch_size}")
    starts = range(0, count * global_batch_size, global_batch_size)
    return [[sample for group in groups[s : s + global_batch_size] for sample in group] for s in starts]


def dp_schedule(
    total_lengths: Sequence[int], rollouts: Sequence[Hashable], global_batch_size: int, rule: PackingRule
) -> Schedule:
    """The schedule of all optimizer steps that these samples make.

    total_lengths: prompt + response tokens per sample; rollouts: see `steps_of`. Raises TrainerError where a step
    cannot be spread over the ranks.
    """
    schedule = Schedule([[] for _ in range(rule.dp_size)], [[] for _ in range(rule.dp_size)], [], [])
    for samples in steps_of(rollouts, global_batch_size):
        lengths = [total_lengths[i] for i in samples]
        bins = micro_batches(lengths, rule)
        schedule.num_microbatches.append(len(bins) // rule.dp_size)
        schedule.rollouts.append(global_batch_size)
        for rank, chosen in enumerate(_deal(bins, lengths, rule)):
            partition = schedule.partitions[rank]
            for batch in chosen:
                schedule.micro_batches[rank].append(list(range(len(partition), len(partition) + len(bins[batch]))))
                partition += [samples[i] for i in bins[batch]]
    return schedule


def _deal(bins: list[list[int]], lengths: list[int], rule: PackingRule) -> list[list[int]]:
    """Which micro batches each rank runs, equally many each."""
    if rule.balance:
        return karmarkar_karp([sum(lengths[i] for i in b) for b in bins], rule.dp_size, equal_size=True)
    return [list(range(rank, len(bins), rule.dp_size)) for rank in range(rule.dp_size)]
