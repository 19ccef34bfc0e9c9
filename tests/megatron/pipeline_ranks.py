"""The program of each process of `test_pipeline`: the same steps in several layouts."""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors.torch import save_file

from actors.megatron.layout import Layout
from actors.megatron.memory import rank_memory
from actors.megatron.rank import TrainerRank
from schemas.doc import doc
from slime_events.core.config.algorithm import AlgorithmSettings
from tests.megatron.gradients import gradients_of
from tests.megatron.ranks import agree
from tests.megatron.recomputing import FULL, recomputing
from tests.megatron.test_commanded_step import pass_of
from tests.megatron.tiny import make_batch, settings_for


@dataclass(frozen=True)
class Case:
    """A layout of a model."""

    model: str
    settings: Mapping[str, Any]
    loads: Annotated[
        Sequence[str], doc("folders of checkpoints that it loads too: `tensor-2` for two ranks' `tensor`")
    ] = ()
    common: Annotated[Mapping[str, Any], doc("settings that one rank has too")] = field(default_factory=dict)


PIPELINE = {"pipeline_model_parallel_size": 2}
LONGER_END = {"megatron": {"num_layers_in_first_pipeline_stage": 1}}
WHOLE = {"megatron": {"use_distributed_optimizer": True}}
VIRTUAL = {"virtual_pipeline_model_parallel_size": 2}
EMPTY_START = {"megatron": VIRTUAL | {"account_for_embedding_in_pipeline_split": True}}
"""Four virtual stages of three layers: the first one has the embedding alone."""
LATER = {"only_train_params_name_list": [r"layers\.[12]\.", "final_layernorm"]}
"""Trained parameters of three layers: a first stage with one layer has none."""
EMBEDDING = ["embedding"]
PARTS = {"megatron": EMPTY_START["megatron"] | WHOLE["megatron"]}
RECOMPUTED = {"megatron": LONGER_END["megatron"] | FULL}
EXPERTS_AGAIN = {"megatron": {"recompute_granularity": "selective", "recompute_modules": ["moe"]}}
TWO = {
    "glm4": Case("glm4", PIPELINE),
    "qwen3_moe": Case("qwen3_moe", PIPELINE | EXPERTS_AGAIN),
    "tensor": Case("qwen3", {"tensor_model_parallel_size": 2}),
    "qwen3": Case("qwen3", PIPELINE | LONGER_END, ["tensor-2"]),
    "virtual": Case("qwen3", PIPELINE | EMPTY_START, ["tensor-2", "qwen3-2"]),
    "frozen stage": Case("qwen3", PIPELINE | LONGER_END, common=LATER),
    "frozen virtual stage": Case("qwen3", PIPELINE | PARTS, ["frozen stage-2"], LATER),
    "frozen stage in bfloat16": Case("qwen3", PIPELINE | LONGER_END, common=LATER | {"bf16": True}),
    "only the embedding": Case("qwen3", PIPELINE | LONGER_END, common={"only_train_params_name_list": EMBEDDING}),
    "frozen embedding": Case("qwen3", PIPELINE | RECOMPUTED, common={"freeze_params_name_list": EMBEDDING}),
}
"""Layouts of two ranks."""
CHOSEN = "cases.json"
"""File in the folder of the results with the names of the cases that are run; if it is missing, all are."""
PACKED = {"clip_grad": 0.0, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 60}
"""Several micro batches, and no norm, whose squares stages add in another order."""


def run(model: Path, out: Path, name: str, case: Case, rank: int, world: int, master: str) -> dict[str, Any]:
    """Train two steps with a checkpoint between them; write gradients and weights of the first step."""
    parallel = case.settings if world > 1 else {}
    settings = settings_for(model / case.model, **PACKED | dict(case.common) | parallel)
    with recomputing() if "recompute_granularity" in settings.megatron else nullcontext():
        return steps(out, name, case, TrainerRank(settings, AlgorithmSettings(entropy_coef=0.01), rank, world, master))


def steps(out: Path, name: str, case: Case, trainer: TrainerRank) -> dict[str, Any]:
    """Do what `run` does with a trainer, and close it."""
    settings, rank, world = trainer.trainee.settings, trainer.place.rank, trainer.place.world_size
    layout = Layout.of(settings)
    memory = rank_memory(trainer.trainee.architecture, layout, world, stage=rank // (world // layout.pipeline))
    assert memory.parameters == sum(parameter.numel() for parameter in trainer.trainee.model.parameters())
    begun = digests(trainer)
    first = trainer.train(make_batch())
    gradients = {name: tensor.contiguous() for name, tensor in gradients_of(trainer).items()}
    weights = {name: tensor.clone() for name, tensor in trainer.export_weights()}
    if rank == 0:
        save_file(gradients, out / f"{name}-{world}.gradients")
        save_file(weights, out / f"{name}-{world}.weights")
    trainer.save_checkpoint(out / f"{name}-{world}")
    saved = digests(trainer)
    second = trainer.train(make_batch(1))
    end = digests(trainer)
    passed = trainer.run_pass(pass_of("ppo"), False)
    trainer.load_checkpoint(out / f"{name}-{world}")
    trainer.train(make_batch(1))
    resumed, loaded = digests(trainer), {}
    for other in case.loads:
        trainer.load_checkpoint(out / other)
        loaded[other] = digests(trainer)
    trainer.reset()
    assert digests(trainer) == begun
    trainer.close()
    figures = [{k: v for k, v in step.metrics.items() if not k.startswith("seconds")} for step in (first, second)]
    return {
        "metrics": figures,
        "log_probs": passed.log_probs.tolist(),
        "begun": begun,
        "saved": saved,
        "end": end,
        "resumed": resumed,
        "loaded": loaded,
    }


def digests(trainer: TrainerRank) -> list[str]:
    """Return the digests of weights and optimizer, which do not depend on the layout."""
    return [trainer.weights_digest(), trainer.optimizer_digest()]


def run_all(cases: Mapping[str, Case], world: int) -> None:
    """Run the cases as a rank; the words of the process are `models out rank`."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # a rank that hangs prints where
    models, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    names = json.loads((out / CHOSEN).read_text()) if (out / CHOSEN).exists() else list(cases)
    results = {
        name: run(models, out, name, cases[name], rank, world, agree(out / f"{name}.master", rank)) for name in names
    }
    (out / f"rank{rank}.json").write_text(json.dumps(results))


def main() -> None:
    """Run the cases of two ranks."""
    run_all(TWO, 2)


if __name__ == "__main__":
    main()
