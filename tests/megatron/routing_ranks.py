"""The program of each process of the layouts in `test_routes_in_layouts`: gradients with given and recorded experts.

All have auxiliary losses, and biases that move; some compute layers again, or run experts in groups.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file

from actors.megatron.families.registry import read_architecture
from actors.megatron.rank import TrainerRank
from actors.megatron.routes import Routes
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.training.train_batch import TrainBatch
from tests.megatron.balance_ranks import BIAS, LOSSES, STAGES
from tests.megatron.gradients import gradients_of
from tests.megatron.pipeline_ranks import Case
from tests.megatron.ranks import agree
from tests.megatron.recomputing import FULL, recomputing
from tests.megatron.tiny import make_batch, settings_for

EXPERTS = {"megatron": {"expert_model_parallel_size": 2}}
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
CONTEXT = {"context_parallel_size": 2}
TWO = {
    "tensor": Case("qwen3_moe", TENSOR),
    "context": Case("qwen3_moe", CONTEXT | {"megatron": {"moe_grouped_gemm": True}}),
    "stages": Case("glm4_moe", STAGES | {"megatron": FULL | STAGES["megatron"]}),
}
"""Layouts of two ranks."""
ALONE = {"max_tokens_per_gpu": 4}
"""Each sample is a micro batch."""
SIGMOID = ("glm4_moe", "deepseek_v3")
"""Models whose routers have biases."""
PACKED = {"clip_grad": 0.0, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 60}


def chosen_batch(folder: Path) -> TrainBatch:
    """A batch with random experts in the engine's place: of most samples, of the beginning of one, of none of one."""
    batch, architecture = make_batch(), read_architecture(folder)
    assert architecture.experts is not None
    random, samples = np.random.default_rng(0), []
    for number, sample in enumerate(batch.samples):
        shape = sample.total_length - 1, architecture.num_layers, architecture.experts.count
        ids = random.random(shape).argsort(-1)[..., : architecture.experts.per_token].astype(np.uint8)
        ids[:, : architecture.experts.first_dense] = 0
        reported = {0: None, 1: ids[:2]}.get(number, ids)
        samples.append(replace(sample, experts=reported))
    return replace(batch, samples=tuple(samples))


def odd(batch: TrainBatch) -> TrainBatch:
    """Leave out a sample: with `ALONE`, one of two ranks has a pass less than the other."""
    return replace(batch, samples=batch.samples[1:])


def gradients(
    model: Path, later: Path, parallel: Mapping[str, Any], rank: int, world: int, master: str
) -> dict[str, torch.Tensor]:
    """Return the gradients with the engine's experts, and those of other weights with the experts that were recorded.

    later: the folder of the other weights.
    """
    both = {}
    balanced = LOSSES | (BIAS if model.name in SIGMOID else {}) | parallel.get("megatron", {})
    settings = settings_for(model, **PACKED | {"use_rollout_routing_replay": True} | parallel | {"megatron": balanced})
    trainer = TrainerRank(settings, AlgorithmSettings(), rank, world, master)
    trainer.train(odd(chosen_batch(model)))
    both |= {f"given {name}": tensor.contiguous() for name, tensor in gradients_of(trainer).items()}
    weights = trainer.export_weights()
    both |= {f"moved {name}": tensor.clone() for name, tensor in weights if name.endswith("e_score_correction_bias")}
    trainer.reset()
    trainee, batch = trainer.trainee, odd(make_batch())
    for ranks in trainee.split(batch.samples, range(len(batch.samples)), trainee.place.data.size()):
        mine = [index for members in ranks for index in members]  # each rank may train any of them
        trainee.score(batch.samples, mine, 1.0)
    trainer.load_weights(later)
    with patch.object(Routes, "forget", lambda _: None):
        trainer.train(batch)
    both |= {f"recorded {name}": tensor.contiguous() for name, tensor in gradients_of(trainer).items()}
    trainer.close()
    return both


def run_all(cases: Mapping[str, Case], world: int) -> None:
    """Write the gradients of each case; words `models out rank`."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # a rank that hangs prints where
    models, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    for name, case in cases.items():
        master, folder = agree(out / f"{name}.master", rank), models / case.model
        with recomputing():
            computed = gradients(folder, models / f"{case.model} later", case.settings, rank, world, master)
        if rank == 0:
            save_file(computed, out / f"{name}.gradients")


def main() -> None:
    """Run the cases of two ranks."""
    run_all(TWO, 2)


if __name__ == "__main__":
    main()
