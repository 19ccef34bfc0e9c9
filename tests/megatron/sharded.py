"""Run in each process of `test_sharded_state`: a trainer in two ranks, with the optimizer's state whole or in parts."""

from __future__ import annotations

import errno
import faulthandler
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from actors.megatron.rank import TrainerRank
from slime_events.core.config.algorithm import AlgorithmSettings
from storage.weights.stored_version import digest_of
from tests.megatron.ranks import agree
from tests.megatron.tiny import make_batch, settings_for

# Clipping takes the norm of all gradients, whose squares are added in another order where ranks share them.
CASES: dict[str, dict[str, Any]] = {
    "float32": {"clip_grad": 0.0},
    "bfloat16": {"clip_grad": 0.0, "bf16": True},
    "clipped": {"clip_grad": 1.0},
    "tensor": {"clip_grad": 0.0, "bf16": True, "tensor_model_parallel_size": 2},
}
SHARED = {"whole": False, "shared": True}
STEPS = 3


def weights_of(rank: TrainerRank) -> str:
    """Empty on ranks other than 0."""
    exported = rank.export_bytes()
    return digest_of(exported) if rank.place.rank == 0 else ""


def state_bytes(rank: TrainerRank) -> int:
    """Return the bytes of moments and step counts."""
    states = rank.trainee.optimizer.optimizer.state.values()
    return sum(tensor.nbytes for state in states for tensor in state.values())


def run(model: Path, out: Path, case: str, kind: str, rank: int, world: int, master: str) -> dict[str, Any]:
    """Train three steps, with a checkpoint before the last, and that step again from every checkpoint. Return each
    result by the checkpoint that it started from, "" for none.
    """
    megatron = {"use_distributed_optimizer": True} if SHARED[kind] else {}
    settings = {name: value for name, value in CASES[case].items() if world > 1 or "parallel" not in name}
    trainer = TrainerRank(settings_for(model, megatron=megatron, **settings), AlgorithmSettings(), rank, world, master)
    results: dict[str, Any] = {"norms": []}
    saved = f"{case}-{kind}-{world}"
    for step in range(STEPS):
        if step == STEPS - 1:
            results["at"] = weights_of(trainer), trainer.optimizer_digest()
            (trainer.begin_checkpoint if SHARED[kind] else trainer.save_checkpoint)(out / saved)
        result = trainer.train(make_batch(step, zero=True))
        results["norms"].append(result.metrics["grad_norm"])
    if SHARED[kind]:
        results["saved"] = trainer.finish_checkpoint(wait=True).state.value
    results["end"] = weights_of(trainer), result.optimizer_digest
    results["state"] = state_bytes(trainer)
    weights = {name: tensor.clone() for name, tensor in trainer.export_weights()}
    if rank == 0:
        save_file(weights, out / f"{saved}.safetensors")
    for folder in sorted(out.glob(f"{case}-*-[12]")):
        trainer.load_checkpoint(folder)
        loaded = weights_of(trainer), trainer.optimizer_digest()
        again = trainer.train(make_batch(STEPS - 1, zero=True)).optimizer_digest
        results[folder.name] = [loaded, (weights_of(trainer), again)]
    trainer.load_weights(model)  # as a recovery does, with moments as they are
    results["followed"] = weights_of(trainer), trainer.optimizer_digest()
    results["failed"] = fail(trainer, out / f"{saved}-failed") if world > 1 else ""
    trainer.close()
    return results


def fail(trainer: TrainerRank, folder: Path) -> str:
    """Save a checkpoint that rank 1 alone cannot write; return the result."""
    write = FileSystemWriter.write_data

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    if trainer.place.rank == 1:
        FileSystemWriter.write_data = full
    try:
        trainer.begin_checkpoint(folder)
        progress = trainer.finish_checkpoint(wait=True)
    finally:
        FileSystemWriter.write_data = write
    return f"{progress.state.value} {progress.problem} {folder.exists()}"


def main() -> None:
    """`model out rank`: every case and kind."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # a rank that hangs prints where
    model, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    results = {}
    for case in CASES:
        for kind in SHARED:
            name = f"{case}-{kind}"
            results[name] = run(model, out, case, kind, rank, 2, agree(out / f"{name}.master", rank))
    (out / f"rank{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
