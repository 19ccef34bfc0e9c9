"""A model whose experts are on several ranks trains as on one: each gradient, the weights, metrics, checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.megatron.families.registry import architecture_of
from actors.megatron.holders import of_whole_model
from actors.megatron.layout import Layout
from actors.step.place import Axis, Place
from schemas.errors import ImpossibleCombination
from slime_events.core.config.trainer import TrainerSettings
from tests.megatron.expert_ranks import TWO
from tests.megatron.expert_ranks_of_four import FOUR
from tests.megatron.pipeline_ranks import CHOSEN
from tests.megatron.test_families import MISTRAL, MOE
from tests.megatron.test_pipeline import check
from tests.megatron.tiny import make_model
from tests.megatron.two_processes import RankPair, run_ranks


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a mixture of experts."""
    folder = tmp_path_factory.mktemp("models")
    make_model(folder / "qwen3_moe", "qwen3_moe", tied=False)
    return folder


@pytest.fixture(scope="module")
def two_ranks(models: Path, rank_pair: RankPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what two ranks wrote."""
    return rank_pair.run("tests.megatron.expert_ranks", models, tmp_path_factory.mktemp("ranks"))


@pytest.mark.real
@pytest.mark.parametrize("name", TWO)
def test_experts_on_two_ranks_equal_one_rank(name: str, models: Path, two_ranks: Path, tmp_path: Path) -> None:
    check(name, TWO[name], models, two_ranks, tmp_path, ranks=2)


@pytest.mark.soak
@pytest.mark.parametrize("first", [name for name, case in FOUR.items() if not case.loads])
def test_four_ranks_equal_one(first: str, models: Path, tmp_path: Path) -> None:
    """Run a case, and those that load its checkpoint."""
    names = [first, *(name for name, case in FOUR.items() if f"{first}-4" in case.loads)]
    (out := tmp_path / "out").mkdir()
    (out / CHOSEN).write_text(json.dumps(names))
    run_ranks(4, "tests.megatron.expert_ranks_of_four", models, out)
    for name in names:
        check(name, FOUR[name], models, out, tmp_path / f"alone {name}", ranks=4)


def layout(ranks: int = 1, tensor: int = 1, **experts: int) -> None:
    """Check a layout of a mixture with 4 experts of inner size 24 on a number of ranks."""
    flags = {f"{axis}_parallel_size": size for axis, size in experts.items()}
    own = Layout.of(TrainerSettings(tensor_model_parallel_size=tensor, megatron=flags))
    own.check(architecture_of(MOE))
    own.check_ranks(ranks)


def test_experts_are_cut_over_ranks_that_divide_them() -> None:
    layout(4, expert_model=4)
    layout(8, expert_model=2)
    layout(4, expert_model=2, expert_tensor=2)


@pytest.mark.parametrize(
    ("impossible", "reason"),
    [
        ({"ranks": 3, "expert_model": 3}, "4 experts of a layer in the checkpoint cannot be cut over expert-model-par"),
        ({"ranks": 5, "expert_tensor": 5}, "24 inner values of an expert .* expert-tensor-parallel-size 5"),
        ({"ranks": 2, "expert_model": 4}, r"2 trainer ranks do not divide into groups of 4 \(expert parallel\)"),
    ],
)
def test_a_layout_without_equal_parts_is_refused(impossible: dict[str, Any], reason: str) -> None:
    with pytest.raises(ImpossibleCombination, match=reason):
        layout(**impossible)


@pytest.mark.parametrize("axis", ["expert_model_parallel_size", "expert_tensor_parallel_size"])
def test_a_dense_model_has_no_expert_parallel_ranks(axis: str) -> None:
    with pytest.raises(ImpossibleCombination, match="MistralForCausalLM has no experts"):
        Layout.of(TrainerSettings(megatron={axis: 2})).check(architecture_of(MISTRAL))


def test_the_whole_model_has_the_order_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge the names of four ranks: two stages with two layers each, and two experts on each of two ranks."""

    def of(layer: int, expert: int) -> list[str]:
        own = [
            f"decoder.layers.{layer}.{part}" for part in ("router", f"experts.{expert}.fc1", f"experts.{expert}.fc2")
        ]
        return [*own, f"decoder.layers.{layer}.shared"]

    held = {
        (stage, expert): [
            *(["embedding.weight"] if stage == 0 else []),
            *of(stage, expert), *of(stage + 2, expert),
            *(["decoder.norm"] if stage else []),
        ]
        for stage in (0, 1)
        for expert in (0, 1)
    }  # fmt: skip

    def together(stage: int) -> dict[str, int]:
        """Return what the expert parallel ranks of a stage gather."""
        return gathered(Axis.EXPERT, [dict.fromkeys(held[stage, expert], expert) for expert in (0, 1)])

    def gathered(axis: Axis, parts: list[dict[str, int]]) -> dict[str, int]:
        monkeypatch.setattr(Place, "size", lambda _, other: 2 if other is axis else 1)
        monkeypatch.setattr(Place, "of_group", lambda *_: parts)
        return of_whole_model(parts[0], place)

    place = Place(0, 4, None, None, None)  # type: ignore[arg-type]  # its groups are not used
    whole = gathered(Axis.PIPELINE, [together(0), together(1)])
    layers = [
        [f"decoder.layers.{layer}.{part}" for part in ("router", *experts, "shared")]
        for layer in range(4)
        for experts in [[f"experts.{expert}.{fc}" for expert in (0, 1) for fc in ("fc1", "fc2")]]
    ]
    assert list(whole) == ["embedding.weight", *(name for layer in layers for name in layer), "decoder.norm"]
    assert whole["decoder.layers.3.experts.1.fc2"] == 1
    assert whole["decoder.layers.3.router"] == 0
