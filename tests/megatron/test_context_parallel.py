"""Context parallel ranks have the gradients, log-probs and metrics of one rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from actors.megatron.context_sequences import Cut
from actors.trainer.ranks import rendezvous_address
from tests.megatron.context_ranks import CASES, OWN, run
from tests.megatron.tiny import make_model
from tests.megatron.two_processes import RankPair

TIGHT = {"atol": 1e-5, "rtol": 1e-5}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 4), st.integers(1, 3))
def test_ranks_have_the_chunks_of_slime(lengths: list[int], ranks: int, multiple_of: int) -> None:
    cut = Cut.of(lengths, ranks, multiple_of)
    assert int(cut.share.sum()) % multiple_of == 0
    held, whole = [cut.tokens(rank) for rank in range(ranks)], np.arange(sum(lengths))
    for rank, tokens in enumerate(held):
        expected, begin = [], 0
        for length, padded in zip(cut.lengths, cut.padded, strict=True):
            sequence = np.full(padded, sum(lengths))
            sequence[:length] = whole[begin : begin + length]
            chunks = sequence.reshape(2 * ranks, -1)
            expected += [chunks[rank], chunks[2 * ranks - 1 - rank]]
            begin += length
        assert tokens.tolist() == np.concatenate(expected).tolist()
    everyone = np.concatenate(held)[cut.order()]
    assert everyone[everyone < sum(lengths)].tolist() == whole.tolist()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of all cases, and the user's loss."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "own.py").write_text(OWN)
    for family, tied in {(case.family, case.tied) for case in CASES.values()}:
        make_model(folder / f"{family}-{tied}", family, tied=tied)
    return folder


@pytest.fixture(scope="module")
def two_ranks(models: Path, rank_pair: RankPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rank_pair.run("tests.megatron.context_ranks", models, models)
    return models


@pytest.mark.real
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_equal_one(name: str, models: Path, two_ranks: Path, tmp_path: Path) -> None:
    compare(name, models, two_ranks, tmp_path, ranks=2)


@pytest.mark.real
def test_a_divided_optimizer_takes_the_same_steps(two_ranks: Path) -> None:
    whole, divided = (torch.load(two_ranks / f"{name}.0", weights_only=False) for name in ("partly rotated", "divided"))
    assert divided["after"] == whole["after"]


@pytest.mark.soak
@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (2, 1), (1, 2)])
def test_four_ranks_equal_one(tensor: int, stages: int, models: Path, tmp_path: Path) -> None:
    """Run context parallelism with data, tensor or pipeline parallelism."""
    words = [sys.executable, "-m", "tests.megatron.context_ranks", str(models), str(tmp_path)]
    processes = [subprocess.Popen([*words, str(rank), "4", str(tensor), str(stages)]) for rank in range(4)]
    assert [process.wait(300) for process in processes] == [0] * 4
    for name in (path.stem for path in tmp_path.glob("*.0")):
        compare(name, models, tmp_path, tmp_path, ranks=4)


def compare(name: str, models: Path, out: Path, scratch: Path, ranks: int) -> None:
    """Compare what the ranks left in `out` with a run on one rank."""
    alone = run(models, scratch, name, 0, 1, rendezvous_address())
    together = [torch.load(out / f"{name}.{rank}", weights_only=False) for rank in range(ranks)]
    if "read" in alone:
        assert alone["read"] == together[0]["saved"], "a checkpoint does not depend on the ranks"
    assert {rank["after"] for rank in together} == {together[0]["after"]}
    for rank in together:
        assert rank["resumed"] == rank["after"], "a checkpoint continues bit by bit"
        assert rank["metrics"] == pytest.approx(alone["metrics"], abs=1e-5, rel=1e-5)
        for column in ("scores", "entropies"):
            assert close(rank.get(column, {}), alone.get(column, {}), **TIGHT)
    ours, theirs = together[0]["gradients"], alone["gradients"]
    for key, gradient in theirs.items():
        largest = max(1e-2, float(gradient.abs().max()))
        assert close({key: ours[key]}, {key: gradient}, atol=1e-5 * largest, rtol=1e-4)
    # Adam makes much of the rounding of a gradient that is almost 0.
    assert close(together[0]["weights"], alone["weights"], atol=2e-3, rtol=0)


def close(ours: dict[Any, Tensor], theirs: dict[Any, Tensor], **tolerance: float) -> bool:
    """Compare tensors of the same names."""
    assert ours.keys() == theirs.keys()
    for key, tensor in theirs.items():
        torch.testing.assert_close(ours[key], tensor, msg=lambda text, key=key: f"{key}: {text}", **tolerance)
    return True
