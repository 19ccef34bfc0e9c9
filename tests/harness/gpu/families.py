"""Each model family on the GPU: each gradient against transformers' autograd in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from slime_events.core.training.train_batch import TrainBatch
from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import Scene, one_rank
from tests.megatron.gradients import gradients_of, plain_gradients
from tests.megatron.plain_prediction import PlainPrediction, make_prediction_model
from tests.megatron.tiny import FAMILIES, WITH_EXPERTS, make_batch, make_model

GROUPED = {"megatron": {"moe_grouped_gemm": True}}
LR = 1e-4
WAYS: dict[str, dict[str, Any]] = {
    "again": {},
    "recompute full": {
        "megatron": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    },
    "recompute selective": {"megatron": {"recompute_granularity": "selective"}},
    "routing replay": {"use_routing_replay": True},
    "all-to-all dispatch": {"megatron": {"moe_token_dispatcher_type": "alltoall"}},
}
"""Settings that change no gradient."""
Figures = dict[str, float | int | str]


def distance(seen: Mapping[str, Tensor], true: Mapping[str, Tensor]) -> Figures:
    """Return the differences of gradients relative to the true ones: of all together, and of the worst tensor."""
    if seen.keys() != true.keys():
        raise ValueError(f"other tensors: {sorted(seen.keys() ^ true.keys())[:4]}")
    apart = {name: (seen[name].cpu().double() - gradient.double()).norm() for name, gradient in true.items()}
    norms = {name: gradient.double().norm() for name, gradient in true.items()}
    worst = max(apart, key=lambda name: float(apart[name] / norms[name].clamp_min(1e-12)))
    whole = torch.stack(list(apart.values())).norm() / torch.stack(list(norms.values())).norm()
    return {
        "all gradients": whole.item(),
        "the worst tensor": (apart[worst] / norms[worst].clamp_min(1e-12)).item(),
        "its name": worst,
    }


def of_rank(model: Path, batch: TrainBatch, **settings: Any) -> dict[str, Tensor]:
    """Return the gradients of a step of our rank."""
    with one_rank(model, clip_grad=0.0, lr=LR, **settings) as rank:
        rank.train(batch)
        return {name: gradient.cpu() for name, gradient in gradients_of(rank).items()}


def plain(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Return transformers' model of a folder, on the CPU."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval()


def look(scene: Scene) -> None:
    """Compare each family in float32, and in bfloat16 with and without grouped experts."""
    for family in FAMILIES:
        try:
            _family(scene, family)
        except Exception as error:
            Row.failed(f"family {family}", error).say()


def _family(scene: Scene, family: str) -> None:
    folder, batch = scene.folder / "families" / family, make_batch()
    make_model(folder, family, tied=False)
    _round(folder)
    true = plain_gradients(plain(folder, torch.float64), batch)
    Row(f"family {family}, float32", "one rank", distance(of_rank(folder, batch, bf16=False), true)).say()
    theirs = distance(plain_gradients(plain(folder, torch.bfloat16), batch), true)
    Row(f"family {family}, bfloat16", "transformers on the CPU", theirs).say()
    Row(f"family {family}, bfloat16", "one rank", distance(of_rank(folder, batch, bf16=True), true)).say()
    if family in WITH_EXPERTS:
        grouped = distance(of_rank(folder, batch, bf16=True, **GROUPED), true)
        Row(f"family {family}, bfloat16", "one rank, grouped experts", grouped).say()


def _round(folder: Path) -> None:
    """Give the weights values that bfloat16 has."""
    file = folder / "model.safetensors"
    save_file({name: t.bfloat16().float() for name, t in load_file(file).items()}, file, metadata={"format": "pt"})


def look_ways(scene: Scene) -> None:
    """Compare settings that change no gradient with the plain step, in both precisions."""
    for family in ("qwen3_moe", "deepseek_v3"):
        folder, batch = scene.folder / "ways" / family, make_batch()
        make_model(folder, family, tied=False)
        for bf16 in (False, True) if scene.on_gpu else (False,):
            base = of_rank(folder, batch, bf16=bf16)
            for way, settings in WAYS.items():
                name = f"{family}, {'bfloat16' if bf16 else 'float32'}, {way}"
                try:
                    Row(
                        name, "against the plain step", distance(of_rank(folder, batch, bf16=bf16, **settings), base)
                    ).say()
                except Exception as error:
                    Row.failed(name, error).say()


def look_prediction(scene: Scene) -> None:
    """Compare the multi-token prediction layer with plain torch on the CPU, both in float32."""
    for family in ("glm4_moe", "deepseek_v3", "glm4_moe_lite"):
        folder, batch, name = scene.folder / "prediction" / family, make_batch(), f"prediction layer, {family}, float32"
        make_prediction_model(folder, family)
        try:
            loss, true = PlainPrediction(folder).gradients(batch, 0.3)
            settings = {"enable_mtp_training": True, "mtp_loss_scaling_factor": 0.3, "clip_grad": 0.0, "lr": LR}
            with one_rank(folder, bf16=False, **settings) as rank:
                seen = rank.train(batch).metrics["mtp_loss"]
                ours = {tensor: gradient.cpu() for tensor, gradient in gradients_of(rank).items() if tensor in true}
            Row(name, "against plain torch", distance(ours, true) | {"loss, relative": abs(seen / loss - 1)}).say()
        except Exception as error:
            Row.failed(name, error).say()
