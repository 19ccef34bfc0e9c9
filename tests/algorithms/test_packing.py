"""Packing never loses or repeats a sample, whatever the lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import TrainerError
from slime_events.algorithms.balance import karmarkar_karp
from slime_events.algorithms.packing import PackingRule, dp_schedule, first_fit, split_largest, steps_of

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


@given(lengths, st.integers(1, 4), st.integers(1, 3), st.integers(50, 2000), st.booleans())
def test_schedule_tiles_every_rank(sizes, dp, align, limit, balance):
    rule = PackingRule(dp_size=dp, max_tokens=limit, align=align, balance=balance)
    multiple = dp * align
    if len(sizes) < -(-len(first_fit(sizes, limit)) // multiple) * multiple:
        with pytest.raises(TrainerError):
            dp_schedule(sizes, range(len(sizes)), len(sizes), rule)
        return
    schedule = dp_schedule(sizes, range(len(sizes)), len(sizes), rule)
    assert sorted(i for part in schedule.partitions for i in part) == list(range(len(sizes)))
    for part, batches in zip(schedule.partitions, schedule.micro_batches, strict=True):
        assert [i for batch in batches for i in batch] == list(range(len(part)))
        assert len(batches) == schedule.num_microbatches[0]
        assert len(batches) % align == 0
        for batch in batches:
            assert len(batch) == 1 or sum(sizes[part[i]] for i in batch) <= limit


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 5))
def test_steps_count_rollouts_and_keep_siblings_together(rollouts, size):
    distinct = list(dict.fromkeys(rollouts))
    if len(distinct) < size:
        with pytest.raises(TrainerError):
            steps_of(rollouts, size)
        return
    steps = steps_of(rollouts, size)
    assert len(steps) == len(distinct) // size
    for number, step in enumerate(steps):
        mine = distinct[number * size : (number + 1) * size]
        assert sorted(step) == [i for i, rollout in enumerate(rollouts) if rollout in mine]


def test_fixed_micro_batches_must_fill_the_ranks():
    rule = PackingRule(dp_size=2, micro_batch_size=2)
    assert dp_schedule([1] * 8, range(8), 4, rule).num_microbatches == [1, 1]
    with pytest.raises(TrainerError, match="micro_batch_size"):
        dp_schedule([1] * 6, range(6), 6, rule)


def test_splitting_halves_the_heaviest_in_place():
    assert split_largest([[0, 1], [2]], 3, [1, 2, 9]) == [[1], [2], [0]]


def test_karmarkar_karp_joins_the_largest_first() -> None:
    """In whatever order they are given: what is left of the two largest is their difference."""
    for sizes in ([8, 7, 6, 5, 4], [4, 5, 6, 7, 8], [6, 4, 8, 5, 7]):
        assert sorted(sum(sizes[one] for one in part) for part in karmarkar_karp(sizes, 2)) == [14, 16]
