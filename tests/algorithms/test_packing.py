"""Packing never loses or repeats a sample, whatever the lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import TrainerError
from slime_events.algorithms.packing import (
    PackingRule,
    first_fit,
    karmarkar_karp,
    micro_batches,
    optimizer_steps,
    split_largest,
)

lengths = st.lists(st.integers(1, 500), min_size=1, max_size=60)


@given(lengths, st.integers(1, 600))
def test_first_fit_places_each_once_within_the_limit(sizes, limit):
    bins = first_fit(sizes, limit)
    assert sorted(i for b in bins for i in b) == list(range(len(sizes)))
    assert all(len(b) == 1 or sum(sizes[i] for i in b) <= limit for b in bins)


@given(lengths, st.integers(1, 8), st.booleans())
def test_karmarkar_karp_places_each_once(sizes, k, equal):
    if len(sizes) < k or (equal and len(sizes) % k):
        with pytest.raises(TrainerError):
            karmarkar_karp(sizes, k, equal_size=equal)
        return
    parts = karmarkar_karp(sizes, k, equal_size=equal)
    sums = [sum(sizes[i] for i in part) for part in parts]
    assert sorted(i for part in parts for i in part) == list(range(len(sizes)))
    assert sums == sorted(sums, reverse=True)
    assert all(part == sorted(part) for part in parts)
    if equal:
        assert {len(part) for part in parts} == {len(sizes) // k}
    else:
        assert max(sums) - min(sums) <= max(sizes)


@given(lengths, st.integers(1, 4), st.integers(50, 2000), st.booleans())
def test_every_sample_is_dealt_to_one_rank(sizes, ranks, limit, balance):
    dealt = micro_batches(sizes, PackingRule(limit, ranks=ranks, balance=balance))
    assert len(dealt) == ranks
    assert sorted(i for batches in dealt for members in batches for i in members) == list(range(len(sizes)))
    for members in (members for batches in dealt for members in batches):
        assert len(members) == 1 or sum(sizes[i] for i in members) <= limit
    if len(sizes) >= -(-len(first_fit(sizes, limit)) // ranks) * ranks:
        assert len({len(batches) for batches in dealt}) == 1, "if there are enough samples"


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 5))
def test_steps_count_rollouts_and_keep_siblings_together(rollouts, size):
    distinct = list(dict.fromkeys(rollouts))
    if len(distinct) < size:
        with pytest.raises(TrainerError):
            optimizer_steps(rollouts, size)
        return
    steps = optimizer_steps(rollouts, size)
    assert len(steps) == len(distinct) // size
    for number, step in enumerate(steps):
        mine = distinct[number * size : (number + 1) * size]
        assert step.rollouts == size
        assert list(step.indices) == [i for i, rollout in enumerate(rollouts) if rollout in mine]


def test_micro_batches_of_a_fixed_size_are_dealt_in_turn():
    assert micro_batches([1] * 5, PackingRule(micro_batch_size=2, ranks=2)) == [[[0, 1], [4]], [[2, 3]]]
    assert micro_batches([1], PackingRule(ranks=2)) == [[[0]], []]
    assert micro_batches([], PackingRule(10, ranks=2, balance=True)) == [[], []]


def test_splitting_halves_the_heaviest_in_place():
    assert split_largest([[0, 1], [2]], 3, [1, 2, 9]) == [[1], [2], [0]]
    assert split_largest([[0, 1]], 3, [1, 2]) == [[1], [0]], "and no further than to one sample each"


def test_karmarkar_karp_joins_the_largest_first() -> None:
    """In whatever order they are given: what is left of the two largest is their difference."""
    for sizes in ([8, 7, 6, 5, 4], [4, 5, 6, 7, 8], [6, 4, 8, 5, 7]):
        assert sorted(sum(sizes[index] for index in part) for part in karmarkar_karp(sizes, 2)) == [14, 16]
