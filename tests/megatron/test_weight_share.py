"""Who writes which tensors, and how many of them are in memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.megatron.weight_share import owners
from schemas.errors import CheckpointMismatch
from slime_events.loop.training.difference import PartDistance, distance, whole_distance
from storage.weights.files import view
from storage.weights.shards import TensorBytes, write_shards

SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=30)


@given(SIZES, st.integers(1, 8), st.integers(1, 2000))
def test_each_parameter_has_one_owner_and_no_rank_has_much_more_than_another(
    sizes: list[int], ranks: int, least: int
) -> None:
    owner = owners({str(place): size for place, size in enumerate(sizes)}, ranks, least)
    assert list(owner) == [str(place) for place in range(len(sizes))]
    has = [0] * ranks
    for size, rank in zip(sizes, owner.values(), strict=True):
        has[rank] += size
    sharing = max(1, min(ranks, sum(sizes) // least))
    assert sum(has[sharing:]) == 0
    assert max(has) - min(has[:sharing]) <= max(sizes)


def test_a_file_s_tensors_are_in_memory_at_once_and_not_all(tmp_path: Path) -> None:
    alive: list[weakref.ref[np.ndarray]] = []  # type: ignore[type-arg]
    most = 0

    def stream() -> Iterator[TensorBytes]:
        nonlocal most
        for place in range(20):
            array = np.full(25, place, np.float32)
            alive.append(weakref.ref(array))
            most = max(most, sum(ref() is not None for ref in alive))
            yield f"t{place}", "F32", (25,), memoryview(array)
            del array

    shards = write_shards(tmp_path, "own", stream(), max_bytes=400, durable=False)
    assert [len(shard.digests) for shard in shards] == [4] * 5
    assert most <= 6, "a file of four, the next tensor, and the one that is given"
    assert write_shards(tmp_path, "none", [], durable=False) == []


def test_the_distance_of_parts_is_that_of_the_whole() -> None:
    rng = np.random.default_rng(3)
    recorded = {f"t{place}": rng.standard_normal(7, dtype=np.float32) for place in range(5)}
    trained = {name: array + rng.standard_normal(7, dtype=np.float32) for name, array in recorded.items()}
    views = {name: view(name, "F32", (7,), array) for name, array in recorded.items()}
    tensors: list[TensorBytes] = [(name, "F32", (7,), array) for name, array in trained.items()]
    parts = [PartDistance.of(views, tensors[:2]), PartDistance.of(views, []), PartDistance.of(views, tensors[2:])]
    apart, whole = whole_distance(views, parts), distance(views, tensors)
    assert (apart.max_abs, apart.tensor) == (whole.max_abs, whole.tensor)
    deltas = np.concatenate([trained[name].astype(np.float64) - recorded[name] for name in recorded])
    numbers = np.concatenate([array.astype(np.float64) for array in recorded.values()])
    assert apart.relative_l2 == pytest.approx(np.linalg.norm(deltas) / np.linalg.norm(numbers), rel=1e-12)
    with pytest.raises(CheckpointMismatch):
        whole_distance(views, parts[:2])
