"""The program of each process: train one layout, and write its figures, gradients and weights."""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from actors.megatron.rank import TrainerRank
from actors.megatron.weights import named_parameters
from schemas.errors import SlimeEventsError
from slime_events.core.config.algorithm import AlgorithmSettings
from tests.megatron.ranks import agree
from tests.megatron.tiny import make_batch, settings_for

JOB = "job.json"
STEPS = 2
LOSSES = ("loss", "train_rollout_logprob_abs_diff", "value_loss")
NORMS = ("grad_norm", "critic_grad_norm")
LONGEST_S = 280


def main() -> None:
    """`model out rank`: the job in `out` twice, since equal inputs have to give equal bits."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(LONGEST_S, exit=True)  # a rank that hangs prints where
    model, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    job = json.loads((out / JOB).read_text())
    if rank >= job["ranks"]:
        return
    results = [run(model, out, job, rank, agree(out / f"{turn}.master", rank)) for turn in range(2)]
    (out / f"rank{rank}.json").write_text(json.dumps(results))


def run(model: Path, out: Path, job: dict[str, Any], rank: int, master: str) -> dict[str, Any]:
    """Train, and return the figures; or the reason for which the trainer refuses the layout."""
    settings = {name: str(model) if value == "{model}" else value for name, value in job["settings"].items()}
    try:
        trainer = TrainerRank(
            settings_for(model, **settings), AlgorithmSettings(**job["algorithm"]), rank, job["ranks"], master
        )
    except SlimeEventsError as error:
        return {"refused": str(error)}
    try:
        return train(trainer, out)
    finally:
        trainer.close()


def train(trainer: TrainerRank, out: Path) -> dict[str, Any]:
    """Return losses, gradient norms and digests of each step."""
    figures: dict[str, Any] = {"loss": [], "grad_norm": [], "digests": []}
    for step in range(STEPS):
        result = trainer.train(make_batch(step))
        figures["loss"] += [result.metrics.get(name, 0.0) for name in LOSSES]
        figures["grad_norm"] += [result.metrics.get(name, 1.0) for name in NORMS]
        figures["digests"] += [result.optimizer_digest, result.critic_digest, trainer.weights_digest()]
        if step == 0:
            with gradients_as_weights(trainer):
                write(trainer, out / "gradients.safetensors")
    write(trainer, out / "weights.safetensors")
    return figures


@contextmanager
def gradients_as_weights(trainer: TrainerRank) -> Iterator[None]:
    """Replace the weights by the gradients of the last update, so that an export gives them, whole."""
    kept: list[tuple[torch.nn.Parameter, Tensor]] = []
    for _, parameter in named_parameters(trainer.trainee.model):
        kept.append((parameter, parameter.detach().clone()))
        gradient = getattr(parameter, "main_grad", None)  # a frozen parameter has none
        parameter.data.copy_(torch.zeros_like(parameter) if gradient is None else gradient)
    yield
    for parameter, weight in kept:
        parameter.data.copy_(weight)


def write(trainer: TrainerRank, path: Path) -> None:
    """Write what rank 0 exports. Collective."""
    tensors = {name: tensor.clone() for name, tensor in trainer.export_weights()}
    if trainer.place.rank == 0:
        save_file(tensors, path)


if __name__ == "__main__":
    main()
