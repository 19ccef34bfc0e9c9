"""The program of each process of `test_families`: a step of each family over two ranks."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from actors.megatron.layout import Layout
from actors.megatron.memory import rank_memory
from actors.megatron.rank import TrainerRank
from slime_events.core.config.algorithm import AlgorithmSettings
from tests.megatron.gradients import gradients_of
from tests.megatron.ranks import agree
from tests.megatron.tiny import FAMILIES, MOVING_BIAS, WITH_EXPERTS, make_batch, settings_for


def main() -> None:
    """`models out rank`: models has a folder for each family; rank 0 writes its gradients to `out`."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # a rank that hangs prints where
    models, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    for family in FAMILIES:
        tensor = 1 if family in WITH_EXPERTS else 2
        moving = MOVING_BIAS if family == "glm4_moe" else {}
        parallel = {"tensor_model_parallel_size": tensor, "sequence_parallel": tensor > 1}
        settings = settings_for(models / family, clip_grad=0.0, **parallel, **moving)
        trainer = TrainerRank(settings, AlgorithmSettings(), rank, 2, agree(out / f"{family}.master", rank))
        parameters = sum(parameter.numel() for parameter in trainer.trainee.model.parameters())
        assert rank_memory(trainer.trainee.architecture, Layout.of(settings), 2).parameters == parameters
        trainer.train(make_batch())
        gradients = gradients_of(trainer)
        weights = {name: tensor.clone() for name, tensor in trainer.export_weights()}
        if rank == 0:
            save_file({name: tensor.contiguous() for name, tensor in gradients.items()}, out / f"{family}.gradients")
            save_file(weights, out / f"{family}.weights")
        trainer.close()


if __name__ == "__main__":
    main()
