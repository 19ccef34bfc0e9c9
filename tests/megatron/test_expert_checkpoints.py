"""A checkpoint continues on another number of ranks of experts, and back, as on the ranks that saved it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from actors.megatron.sharded_state import StepCounts
from actors.trainer.ranks import rendezvous_address
from tests.megatron.expert_checkpoints import MORE, TWO, Moved, run
from tests.megatron.expert_checkpoints_of_four import FOUR
from tests.megatron.tiny import make_model
from tests.megatron.two_processes import RankPair, run_ranks

Results = dict[str, Any]
"""Results of a case, by the numbers of ranks that had the checkpoint one after the other."""
Ranks = Callable[[str, Path, Path], Path]
"""Runs a module on several ranks with the folder of the models and one for their results, which it returns."""


def moved(cases: Mapping[str, Moved], module: str, folder: Path, ranks: Ranks) -> dict[str, Results]:
    """Run the cases twice, on one rank and on several, each with the checkpoints of the other. Return all results."""
    models = folder / "models"
    for model in {case.model for case in cases.values()}:
        make_model(models / model, model, tied=False)
    results: dict[str, Results] = {name: {} for name in cases}
    for turn in range(2):
        for name, case in cases.items():
            results[name] |= run(models, folder, name, case, 0, 1, rendezvous_address())
        (out := folder / f"turn {turn}").mkdir()
        ranks(module, models, out)
        first, *others = [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]
        assert all(other == first for other in others), "all ranks have the same results"
        for name in cases:
            results[name] |= first[name]
    return results


def check(name: str, case: Moved, several: int, results: Results, folder: Path) -> None:
    """Compare the steps of a case after a checkpoint with those of the ranks that saved it."""
    for saver, other in ((1, several), (several, 1)):
        own, there = f"{name}-{saver}", f"{name}-{saver}-{other}"
        assert results[there]["begun"] == results[own]["begun"], "no digest depends on the layout"
        metrics, weights = (1e-2, 2**-7) if "bf16" in case.both else (1e-5, 0.0)
        assert results[there]["metrics"] == pytest.approx(results[own]["metrics"], abs=1e-6, rel=metrics)
        assert results[there]["end"] != results[there]["begun"]
        ours, theirs = (load_file(folder / f"{path}.safetensors") for path in (own, there))
        for tensor in ours:
            torch.testing.assert_close(ours[tensor], theirs[tensor], atol=2e-4, rtol=weights)
        assert results[f"{there}-{saver}"] == results[own], "the checkpoint that comes back continues bit for bit"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints of `TWO`."""
    return tmp_path_factory.mktemp("moved")


@pytest.fixture(scope="module")
def two_ranks(rank_pair: RankPair, folder: Path) -> dict[str, Results]:
    """Results of `TWO`."""
    return moved(TWO, "tests.megatron.expert_checkpoints", folder, rank_pair.run)


@pytest.mark.real
@pytest.mark.parametrize("name", TWO)
def test_a_checkpoint_moves_between_one_rank_and_two(name: str, two_ranks: dict[str, Results], folder: Path) -> None:
    check(name, TWO[name], 2, two_ranks[name], folder)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("ranks", "module", "cases"), [(2, "expert_checkpoints_more", MORE), (4, "expert_checkpoints_of_four", FOUR)]
)
def test_further_checkpoints_move(ranks: int, module: str, cases: Mapping[str, Moved], tmp_path: Path) -> None:
    results = moved(cases, f"tests.megatron.{module}", tmp_path, lambda *words: run_ranks(ranks, *words))
    for name, case in cases.items():
        check(name, case, ranks, results[name], tmp_path)


ONE = {"param_groups": [{}], "state": {"common_step": torch.tensor(3.0)}}


@pytest.mark.parametrize(
    ("entries", "steps"),
    [
        (ONE, (0, 3)),
        ({"optimizer": ONE}, (0, 3)),
        ({0: ONE, 1: ONE, "blocks": {}}, (0, 3)),
        ({0: {"optimizer": ONE}, 1: {"optimizer": ONE}}, (0, 3)),
        ({"param_groups": [{"step": 2}, {"step": 2}]}, (2, 0)),
        ({"param_groups": [{}]}, (0, 0)),
    ],
)
def test_the_number_of_steps_is_read_from_one_part_or_two(entries: Any, steps: tuple[int, int]) -> None:
    assert StepCounts.saved(entries) == steps


@pytest.mark.parametrize(
    "entries",
    [
        {0: ONE, 1: {"param_groups": [{}], "state": {"common_step": torch.tensor(4.0)}}},
        {"param_groups": [{"step": 2}, {"step": 3}]},
    ],
)
def test_different_numbers_of_steps_are_refused(entries: Any) -> None:
    with pytest.raises(ValueError, match="different numbers of optimizer steps"):
        StepCounts.saved(entries)
