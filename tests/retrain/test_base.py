"""Test where the weights are that a run began with."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.analysis.retrain.settings import is_same, topology_text, with_base, with_topology
from slime_events.core.config.settings import TrainSettings
from tests import made


def folder_of(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def settings(**trainer: object) -> TrainSettings:
    return made.settings(trainer=trainer)


def test_the_runs_own_is_taken_where_it_is_there(tmp_path: Path) -> None:
    own = settings(hf_checkpoint=str(folder_of(tmp_path / "base")))
    assert with_base(own, tmp_path / "weights") == own


def test_else_weight_version_0_and_the_one_that_is_given_before_all(tmp_path: Path) -> None:
    first, base = folder_of(tmp_path / "weights" / "v000000-055ff9928f5d"), folder_of(tmp_path / "given")
    gone = settings(hf_checkpoint=str(tmp_path / "gone"))
    assert with_base(gone, tmp_path / "weights").trainer.hf_checkpoint == str(first)
    assert with_base(gone, tmp_path / "weights", str(base)).trainer.hf_checkpoint == str(base)


@pytest.mark.parametrize("load", [None, "a-trainer-checkpoint"])
def test_a_base_that_is_gone_is_named(tmp_path: Path, load: str | None) -> None:
    """Version 0 is what `load` held, so it replaces the base only if there was none."""
    if load:
        folder_of(tmp_path / "weights" / "v000000-055ff9928f5d")
    with pytest.raises(InvalidValue, match="started from the weights in /gone/base, and that folder is not here"):
        with_base(settings(hf_checkpoint="/gone/base", load=load), tmp_path / "weights")


@pytest.mark.parametrize(
    ("tensor", "ranks", "text"),
    [
        (None, None, "2 ranks"),
        (2, None, "4 ranks, tensor parallel 2"),
        (2, 2, "2 ranks, tensor parallel 2"),
        (1, 1, "1 rank"),
    ],
)
def test_a_topology_keeps_the_data_parallel_ranks(tensor: int | None, ranks: int | None, text: str) -> None:
    own = settings(actor_num_gpus_per_node=2)
    other = with_topology(own, tensor, ranks)
    assert topology_text(other) == text
    assert is_same(own, other) is (text == "2 ranks")


def test_ranks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ImpossibleCombination, match="3 ranks do not divide"):
        with_topology(settings(), 2, 3)


def test_context_parallel_ranks_are_not_data_parallel() -> None:
    own = settings(actor_num_gpus_per_node=4, context_parallel_size=2)
    assert topology_text(with_topology(own, 2, None)) == "8 ranks, tensor parallel 2, context parallel 2"
    alone = with_topology(own, None, None, 1)
    assert topology_text(alone) == "2 ranks"
    assert not is_same(own, alone)
    with pytest.raises(ImpossibleCombination, match="1 ranks do not divide"):
        with_topology(own, None, 1)
