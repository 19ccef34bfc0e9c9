"""Run in each process of `test_resting`: two ranks train, with and without a rest after each step."""

from __future__ import annotations

import faulthandler
import json
import sys
from pathlib import Path
from typing import Any

import torch

from actors.megatron.rank import TrainerRank
from slime_events.core.config.algorithm import AlgorithmSettings
from tests.megatron.ranks import agree
from tests.megatron.tiny import make_batch, settings_for

CASES: dict[str, dict[str, Any]] = {
    "data": {},
    "data, distributed optimizer": {"bf16": True, "megatron": {"use_distributed_optimizer": True}},
    "gathered late": {
        "bf16": True,
        "megatron": {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
    },
    "tensor": {"tensor_model_parallel_size": 2},
    "stages": {"pipeline_model_parallel_size": 2},
}


def run(model: Path, rank: int, master: str, settings: dict[str, Any], *, resting: bool) -> list[Any]:
    """Return digests of three steps."""
    trainer, digests = TrainerRank(settings_for(model, **settings), AlgorithmSettings(), rank, 2, master), []
    for step in range(3):
        result = trainer.train(make_batch(step))
        if resting:
            trainer.rest()
            trainer.wake()
        digests.append([trainer.weights_digest(), result.optimizer_digest])
    trainer.close()
    return digests


def main() -> None:
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # a rank that hangs prints where
    model, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    results = {}
    for number, (case, settings) in enumerate(CASES.items()):
        for resting in (False, True):
            name = f"{case}, resting" if resting else case
            results[name] = run(model, rank, agree(out / f"{number}-{resting}.master", rank), settings, resting=resting)
    (out / f"resting{rank}.json").write_text(json.dumps(results))
