"""The program of each process of `test_balance_ranks`: steps that balance experts, in several layouts."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from actors.megatron.rank import TrainerRank
from slime_events.core.config.algorithm import AlgorithmSettings
from tests.megatron.context_ranks import odd_batch
from tests.megatron.gradients import gradients_of
from tests.megatron.pipeline_ranks import EMPTY_START
from tests.megatron.ranks import agree
from tests.megatron.recomputing import FULL, recomputing
from tests.megatron.tiny import MOVING_BIAS, settings_for

SEQUENCE_PARALLEL = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
CONTEXT = {"context_parallel_size": 2}
STAGES = {"pipeline_model_parallel_size": 2, "megatron": {"num_layers_in_last_pipeline_stage": 1}}
VIRTUAL_STAGES = {"pipeline_model_parallel_size": 2, **EMPTY_START}
EXPERTS = {"megatron": {"expert_model_parallel_size": 2}}


class Case(NamedTuple):
    """parallel: the layout. balance: settings of all layouts, among Megatron's. tokens: of a micro batch."""

    parallel: Mapping[str, Any]
    balance: Mapping[str, Any]
    family: str = "glm4_moe"
    tokens: int = 64


BIAS = MOVING_BIAS["megatron"]
LOSSES = {
    "moe_router_load_balancing_type": ["seq_aux_loss", "aux_loss"],
    "moe_aux_loss_coeff": [0.3, 0.2],
    "moe_z_loss_coeff": 0.01,
}
BOTH = BIAS | LOSSES
CASES = {
    "data": Case({}, LOSSES, "qwen3_moe"),
    "context": Case(CONTEXT, BOTH),
    "sequence": Case(SEQUENCE_PARALLEL, BOTH),
    "stages": Case(STAGES, BOTH | FULL),
    "virtual stages": Case(VIRTUAL_STAGES, BOTH),
    "idle passes": Case(EXPERTS, BOTH | FULL, tokens=400),
}


def run(models: Path, name: str, rank: int, world: int, master: str) -> dict[str, Any]:
    """Train two steps; return the gradients of the first, the weights after both, and metrics."""
    case = CASES[name]
    parallel = dict(case.parallel) if world > 1 else {}
    megatron = {**case.balance, **parallel.pop("megatron", {})}
    packed = {"use_dynamic_batch_size": True, "max_tokens_per_gpu": case.tokens}
    settings = settings_for(models / case.family, clip_grad=0.0, megatron=megatron, **packed, **parallel)
    with recomputing():
        trainer = TrainerRank(settings, AlgorithmSettings(), rank, world, master)
        steps = [trainer.train(odd_batch(0))]
        gradients = gradients_of(trainer)
        steps.append(trainer.train(odd_batch(1)))
    weights = {key: tensor.clone() for key, tensor in trainer.export_weights()}
    trainer.close()
    metrics = {
        f"{number} {key}": value
        for number, step in enumerate(steps)
        for key, value in step.metrics.items()
        if not key.startswith("seconds")
    }
    return {"gradients": gradients, "weights": weights, "metrics": metrics}


def main() -> None:
    """`models out rank`: every case on two ranks."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # a rank that hangs prints where
    models, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    for name in CASES:
        torch.save(run(models, name, rank, 2, agree(out / f"{name}.master", rank)), out / f"{name}.{rank}")


if __name__ == "__main__":
    main()
