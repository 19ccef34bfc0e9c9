"""Ranks of every layout balance experts as one rank does: each gradient, the routers' biases, metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actors.trainer.ranks import rendezvous_address
from tests.megatron.balance_ranks import CASES, run
from tests.megatron.test_expert_bias import BIAS
from tests.megatron.tiny import make_model
from tests.megatron.two_processes import RankPair


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of all cases."""
    folder = tmp_path_factory.mktemp("models")
    for family in {case.family for case in CASES.values()}:
        make_model(folder / family, family, tied=False)
    return folder


@pytest.fixture(scope="module")
def two_ranks(models: Path, rank_pair: RankPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what two ranks wrote."""
    return rank_pair.run("tests.megatron.balance_ranks", models, tmp_path_factory.mktemp("ranks"))


@pytest.mark.real
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_equal_one(name: str, models: Path, two_ranks: Path) -> None:
    alone = run(models, name, 0, 1, rendezvous_address())
    together, other = (torch.load(two_ranks / f"{name}.{rank}", weights_only=False) for rank in range(2))
    assert together["metrics"] == other["metrics"]
    assert together["metrics"] == pytest.approx(alone["metrics"], abs=1e-5, rel=1e-5)
    assert together["gradients"].keys() == alone["gradients"].keys()
    for key, gradient in alone["gradients"].items():
        atol = 1e-5 * max(1e-2, float(gradient.abs().max()))
        torch.testing.assert_close(together["gradients"][key], gradient, atol=atol, rtol=1e-4, msg=key)
    biases = {key: bias for key, bias in alone["weights"].items() if key.endswith(BIAS)}
    for key, bias in biases.items():
        torch.testing.assert_close(together["weights"][key], bias, atol=1e-7, rtol=0, msg=key)
