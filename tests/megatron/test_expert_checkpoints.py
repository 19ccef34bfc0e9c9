"""A checkpoint continues on another number of ranks of experts, and back, as on the ranks that saved it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from actors.megatron.sharded_state import StepCounts
from actors.trainer.ranks import rendezvous_address
from tests.megatron.expert_checkpoints import CASE, CASES, MORE, TWO, run
from tests.megatron.tiny import make_model
from tests.megatron.two_processes import RankPair

MODULE = "tests.megatron.expert_checkpoints"


def check(name: str, folder: Path, pair: RankPair) -> None:
    """Run a case twice, on one rank and on several, each with the checkpoints of the other, and compare the steps after
    a checkpoint with those of the ranks that saved it.
    """
    case, models = CASES[name], folder / "models"
    make_model(models / case.model, case.model, tied=False)
    results: dict[str, Any] = {}
    for turn in range(2):
        results |= run(models, folder, name, case, 0, 1, rendezvous_address())
        (out := folder / f"turn {turn}").mkdir()
        (out / CASE).write_text(name)
        pair.run(MODULE, models, out)
        first, *others = [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]
        assert all(other == first for other in others), "all ranks have the same results"
        results |= first
    for saver, other in ((1, case.ranks), (case.ranks, 1)):
        own, there = f"{name}-{saver}", f"{name}-{saver}-{other}"
        assert results[there]["begun"] == results[own]["begun"], "no digest depends on the layout"
        assert results[there]["end"] != results[there]["begun"]
        # In bfloat16, sums in another order may round a value, such as a weight after its step, to its neighbour, up to
        # 2**-7 of it away. The roundings of all gradients in a norm have no common direction.
        metrics, weights = (2**-8, 2**-7) if "bf16" in case.both else (1e-5, 0.0)
        assert results[there]["metrics"] == pytest.approx(results[own]["metrics"], abs=1e-6, rel=metrics)
        ours, theirs = (load_file(folder / f"{path}.safetensors") for path in (own, there))
        assert ours.keys() == theirs.keys()
        for tensor in ours:
            torch.testing.assert_close(ours[tensor], theirs[tensor], atol=2e-4, rtol=weights)
        assert results[f"{there}-{saver}"] == results[own], "the checkpoint that comes back continues bit for bit"


@pytest.mark.real
@pytest.mark.parametrize("name", TWO)
def test_a_checkpoint_moves_between_one_rank_and_two(name: str, tmp_path: Path, rank_pair: RankPair) -> None:
    check(name, tmp_path, rank_pair)


@pytest.mark.soak
@pytest.mark.parametrize("name", MORE)
def test_further_checkpoints_move(name: str, tmp_path: Path) -> None:
    with RankPair(tmp_path, CASES[name].ranks) as pair:
        check(name, tmp_path, pair)


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
