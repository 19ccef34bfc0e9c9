"""A model whose layers are cut over ranks trains as in one rank: each gradient, the weights, metrics, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from safetensors.torch import load_file

from actors.megatron.families.registry import architecture_of
from actors.megatron.flags import LAYOUT
from actors.megatron.layout import Layout
from actors.trainer.ranks import rendezvous_address
from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.core.config.trainer import TrainerSettings
from tests.megatron.pipeline_ranks import TWO, Case, run
from tests.megatron.pipeline_ranks_of_four import FOUR
from tests.megatron.test_families import MOE
from tests.megatron.tiny import FAMILIES, make_model, settings_for
from tests.megatron.two_processes import RankPair, run_ranks


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of `TWO`; that of qwen3 is tied, with three layers."""
    folder = tmp_path_factory.mktemp("models")
    for family in ("glm4", "qwen3_moe"):
        make_model(folder / family, family, tied=False)
    make_model(folder / "qwen3", num_hidden_layers=3)
    return folder


@pytest.fixture(scope="module")
def two_ranks(models: Path, rank_pair: RankPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what two ranks wrote."""
    return rank_pair.run("tests.megatron.pipeline_ranks", models, tmp_path_factory.mktemp("ranks"))


@pytest.mark.real
@pytest.mark.parametrize("name", TWO)
def test_two_stages_equal_one_rank(name: str, models: Path, two_ranks: Path, tmp_path: Path) -> None:
    check(name, TWO[name], models, two_ranks, tmp_path, ranks=2)


@pytest.mark.soak
def test_four_ranks_equal_one(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for family in FAMILIES:
        make_model(models / family, family, tied=False, num_hidden_layers=4)
    make_model(models / "tied", num_hidden_layers=4)
    out = run_ranks(4, "tests.megatron.pipeline_ranks_of_four", models, tmp_path / "out")
    for name, case in FOUR.items():
        check(name, case, models, out, tmp_path / f"alone {name}", ranks=4)


def check(name: str, case: Case, models: Path, out: Path, alone: Path, *, ranks: int) -> None:
    """Compare the results of `ranks` ranks in `out` with those of a single rank, which works in the folder `alone`."""
    alone.mkdir(exist_ok=True)
    every = [json.loads((out / f"rank{rank}.json").read_text())[name] for rank in range(ranks)]
    together, layout = every[0], Layout.of(settings_for(models, **case.settings))
    assert all(other == together for other in every), "all ranks have the same results"
    assert together["resumed"] == together["end"]
    for other, digests in together["loaded"].items():
        saved = json.loads((out / "rank0.json").read_text())[other.removesuffix(f"-{ranks}")]["saved"]
        assert digests == saved, "no digest depends on the layout"
    loads = [f"{out / name}-{ranks}"]  # one rank continues from the checkpoint of several too
    single = run(models, alone, name, replace(case, settings={}, loads=loads), 0, 1, rendezvous_address())
    assert all(digests == together["saved"] for digests in single["loaded"].values())
    for step, expected in zip(together["metrics"], single["metrics"], strict=True):
        assert step == pytest.approx(expected, abs=1e-6, rel=1e-5)
    assert together["log_probs"] == pytest.approx(single["log_probs"], abs=1e-4)
    assert together["begun"] == single["begun"]
    ours, theirs = (load_file(path) for path in (out / f"{name}-{ranks}.gradients", alone / f"{name}-1.gradients"))
    is_whole = "use_distributed_optimizer" not in case.settings.get("megatron", {})
    if is_whole or layout.tensor * layout.pipeline == ranks:  # if not, each rank has a part of the gradients
        _close(ours, theirs, atol=1e-6, rtol=1e-5)
    # Adam makes a whole step of a gradient that is 0 but for rounding, such as that of a key's bias.
    moved = {tensor: gradient.abs() > 1e-6 for tensor, gradient in theirs.items()}
    folders = (out / f"{name}-{ranks}.weights", alone / f"{name}-1.weights")
    weights = [{tensor: value[moved.get(tensor, ...)] for tensor, value in load_file(path).items()} for path in folders]
    _close(*weights, atol=2e-4, rtol=0.0)
    begun = load_file(models / case.model / "model.safetensors")
    for written in map(load_file, folders):
        for tensor in written.keys() - theirs.keys():
            assert torch.equal(written[tensor], begun[tensor].to(written[tensor].dtype)), f"{tensor} is frozen"
    lists = {"only_train_params_name_list", "freeze_params_name_list"} & case.common.keys()
    untrained = begun.keys() - theirs.keys()
    assert untrained if lists else not untrained or case.common


def _close(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor], *, atol: float, rtol: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(
            tensor, theirs[name], atol=atol, rtol=rtol, msg=lambda text, name=name: f"{name}: {text}"
        )


def stages(stages: int, layers: int, first: object = None, last: object = None) -> None:
    """Check a pipeline of a model with that many layers; first, last: layers of these stages."""
    own = {"num_layers_in_first_pipeline_stage": first, "num_layers_in_last_pipeline_stage": last}
    flags = {name: count for name, count in own.items() if count is not None}
    settings = TrainerSettings(pipeline_model_parallel_size=stages, megatron=flags)
    Layout.of(settings).check(architecture_of(MOE | {"num_hidden_layers": layers}))


@pytest.mark.parametrize(
    "possible", [(1, 3), (2, 4), (4, 4), (2, 3, 1), (2, 3, None, 1), (2, 3, 1, 2), (3, 5, 1, 2), (4, 6, 1, 1)]
)
def test_stages_with_all_layers_are_possible(possible: tuple[Any, ...]) -> None:
    stages(*possible)


@pytest.mark.parametrize(
    ("impossible", "reason"),
    [
        ((2, 3), "3 layers of the checkpoint cannot be cut over pipeline-model-parallel-size 2: "),
        ((2, 4, 1, 2), "4 layers .* with --decoder-first-pipeline-num-layers 1 with --decoder-last"),
        ((3, 5, 1, 4), "do not give a layer to each stage"),
        ((2, 3, 3), "do not give a layer to each stage"),
        ((4, 2), "2 layers of the checkpoint cannot be cut"),
        ((1, 4, 2), "--decoder-first-pipeline-num-layers need a pipeline"),
    ],
)
def test_stages_without_all_layers_are_refused(impossible: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(ImpossibleCombination, match=reason):
        stages(*impossible)


@pytest.mark.parametrize("count", [0, -1, "2", True])
def test_a_number_of_layers_is_a_whole_number(count: object) -> None:
    with pytest.raises(InvalidValue, match="decoder-first-pipeline-num-layers"):
        stages(2, 4, count)


VIRTUAL = "virtual_pipeline_model_parallel_size"
ENDS = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}


@pytest.mark.parametrize(
    ("pipeline", "layers", "flags"),
    [
        (1, 5, {}),
        (2, 8, {}),
        (2, 3, {"num_layers_in_first_pipeline_stage": 1}),
        (4, 13, {"num_layers_in_first_pipeline_stage": 3, "num_layers_in_last_pipeline_stage": 2}),
        (2, 8, {VIRTUAL: 2}),
        (4, 32, {VIRTUAL: 4}),
        (2, 8, {"num_layers_per_virtual_pipeline_stage": 1}),
        (3, 14, {VIRTUAL: 2, "num_layers_in_first_pipeline_stage": 2}),
        (3, 14, {VIRTUAL: 2, "num_layers_in_first_pipeline_stage": 2, "num_layers_in_last_pipeline_stage": 4}),
        (2, 4, ENDS),
        (4, 7, {"account_for_embedding_in_pipeline_split": True}),
        (4, 7, {"account_for_loss_in_pipeline_split": True}),
        (2, 6, ENDS | {VIRTUAL: 4}),
        (2, 6, ENDS | {"num_layers_per_virtual_pipeline_stage": 2}),
    ],
)
def test_stages_have_the_layers_that_megatron_gives_them(pipeline: int, layers: int, flags: dict[str, Any]) -> None:
    settings = TrainerSettings(pipeline_model_parallel_size=pipeline, megatron=flags)
    layout = Layout.of(settings)
    layout.check(architecture_of(MOE | {"num_hidden_layers": layers}))
    parts = layout.virtual_stages(layers)
    fields = {name: value for name, value in flags.items() if name not in LAYOUT}
    config = TransformerConfig(
        num_layers=layers, hidden_size=8, num_attention_heads=1, pipeline_model_parallel_size=pipeline,
        pipeline_dtype=torch.float32, **fields | {VIRTUAL: parts if parts > 1 else None},
    )  # fmt: skip
    for rank, stages in enumerate(layout.stages(layers)):
        for part, own in enumerate(stages):
            virtual = part if parts > 1 else None
            first = get_transformer_layer_offset(config, virtual, rank)
            assert own == range(first, first + get_num_layers_to_build(config, virtual, rank))


@pytest.mark.parametrize(
    ("pipeline", "layers", "flags", "reason"),
    [
        (1, 4, {VIRTUAL: 2}, "need a pipeline"),
        (1, 4, ENDS, "need a pipeline"),
        (2, 6, {VIRTUAL: 2}, "the 3 layers of a rank"),
        (2, 8, {"num_layers_per_virtual_pipeline_stage": 3}, "the 4 layers of a rank"),
        (2, 8, {VIRTUAL: 2, "num_layers_per_virtual_pipeline_stage": 2}, "leave one of them out"),
        (2, 7, {VIRTUAL: 2, "num_layers_in_first_pipeline_stage": 3}, "the 3 layers of a rank"),
        (2, 6, {"num_layers_per_virtual_pipeline_stage": 1, "num_layers_in_first_pipeline_stage": 2}, "set --num-virt"),
        (2, 8, {VIRTUAL: 2, "microbatch_group_size_per_vp_stage": 1}, "must not be below"),
        (2, 8, {"microbatch_group_size_per_vp_stage": 2}, "needs --num-virtual-stages"),
        (2, 3, ENDS, "cannot be cut over"),
        (2, 4, ENDS | {"num_layers_in_first_pipeline_stage": 1}, "exclude each other"),
    ],
)
def test_impossible_stages_are_refused(pipeline: int, layers: int, flags: dict[str, Any], reason: str) -> None:
    settings = TrainerSettings(pipeline_model_parallel_size=pipeline, megatron=flags)
    with pytest.raises(ImpossibleCombination, match=reason):
        Layout.of(settings).check(architecture_of(MOE | {"num_hidden_layers": layers}))
