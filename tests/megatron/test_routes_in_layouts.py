"""Every layout computes the gradients of one rank, with experts of the engine and with recorded ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from actors.trainer.ranks import rendezvous_address
from tests.megatron.pipeline_ranks import Case
from tests.megatron.routing_ranks import TWO, gradients
from tests.megatron.routing_ranks_of_four import FOUR
from tests.megatron.tiny import make_model
from tests.megatron.two_processes import RankPair, run_ranks

FAMILIES = ("qwen3_moe", "glm4_moe", "deepseek_v3")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mixtures of experts, each with two sets of weights."""
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        make_model(folder / family, family, tied=False)
        make_model(folder / f"{family} later", family, tied=False, seed=1)
    return folder


@pytest.fixture(scope="module")
def of_one_rank(models: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The gradients of one rank by family, as they are needed."""

    class Computed(dict[str, dict[str, torch.Tensor]]):
        def __missing__(self, family: str) -> dict[str, torch.Tensor]:
            self[family] = gradients(models / family, models / f"{family} later", {}, 0, 1, rendezvous_address())
            return self[family]

    return Computed()


@pytest.fixture(scope="module")
def two_ranks(models: Path, rank_pair: RankPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what two ranks wrote."""
    return rank_pair.run("tests.megatron.routing_ranks", models, tmp_path_factory.mktemp("ranks"))


def check(name: str, case: Case, out: Path, of_one_rank: dict[str, dict[str, torch.Tensor]]) -> None:
    """Compare each gradient of a case with that of one rank."""
    ours, expected = load_file(out / f"{name}.gradients"), of_one_rank[case.model]
    assert ours.keys() == expected.keys()
    for gradient, tensor in expected.items():
        text = f"{name}, {gradient}"
        torch.testing.assert_close(
            ours[gradient], tensor, atol=1e-6, rtol=1e-4, msg=lambda error, text=text: f"{text}: {error}"
        )


@pytest.mark.real
@pytest.mark.parametrize("name", TWO)
def test_two_ranks_equal_one(name: str, two_ranks: Path, of_one_rank: dict[str, dict[str, torch.Tensor]]) -> None:
    check(name, TWO[name], two_ranks, of_one_rank)


def test_the_experts_make_a_difference(models: Path, of_one_rank: dict[str, dict[str, torch.Tensor]]) -> None:
    """Otherwise equal gradients would show nothing."""
    computed = of_one_rank["qwen3_moe"]
    name = "model.layers.1.mlp.gate.weight"
    assert not torch.allclose(computed[f"given {name}"], computed[f"recorded {name}"], atol=1e-3)


@pytest.mark.soak
def test_four_ranks_equal_one(models: Path, tmp_path: Path, of_one_rank: dict[str, dict[str, torch.Tensor]]) -> None:
    run_ranks(4, "tests.megatron.routing_ranks_of_four", models, tmp_path)
    for name, case in FOUR.items():
        check(name, case, tmp_path, of_one_rank)
