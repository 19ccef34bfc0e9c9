"""Run in each process of `test_parallel`: a trainer in two ranks, data, tensor or context parallel."""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from actors.megatron import rank as rank_module
from actors.megatron import weight_share
from actors.megatron.rank import TrainerRank
from actors.trainer.ranks import rendezvous_address
from slime_events.core.config.algorithm import AlgorithmSettings
from storage.weights.store import WeightStore
from tests.megatron.tiny import make_batch, settings_for

# A reward KL, a teacher, whitening and two optimizer steps send log-probs and advantages through every exchange.
ALGORITHMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({}, {}),
    "tree": ({}, {"tree_packing": True}),
    "exchange": (
        {
            "advantage_estimator": "reinforce_plus_plus",
            "kl_coef": 0.1,
            "normalize_advantages": True,
            "entropy_coef": 0.01,
            "calculate_per_token_loss": True,
            "use_opd": True,
            "opd_type": "megatron",
        },
        {"num_steps_per_rollout": 2, "balance_data": True},
    ),
    "critic": (
        {"advantage_estimator": "ppo", "kl_coef": 0.1, "normalize_advantages": True, "gamma": 0.99, "lambd": 0.9},
        {"num_steps_per_rollout": 2, "critic_lr": 2e-3},
    ),
}
ON_THE_HOST = "exchange, on the host"
ALGORITHMS[ON_THE_HOST] = ALGORITHMS["exchange"]
PARALLEL: dict[str, dict[str, Any]] = {
    "data": {},
    "tensor": {"tensor_model_parallel_size": 2},
    "pipeline": {"pipeline_model_parallel_size": 2},
    "context": {"context_parallel_size": 2},
}
EVERY = [(kind, case) for kind in PARALLEL for case in ALGORITHMS if (kind, case) != ("context", "tree")]
CASES = [(kind, case) for kind, case in EVERY if kind == "tensor" or case != ON_THE_HOST]
MORE = [(kind, case) for kind, case in EVERY if case in ("exchange", ON_THE_HOST) and kind != "tensor"]
"""For a soak. Each model waits in the same memory whatever the ranks are, and CASES have this for one kind."""
STEPS = 3
SHARE_BYTES = 4096


def run(model: Path, out: Path, kind: str, case: str, rank: int, world_size: int, master: str) -> dict[str, Any]:
    """Train 3 steps, dump the first, save a checkpoint after the second; losses, gradient norms and digests, and the
    weights of rank 0.
    """
    algorithm, settings = ALGORITHMS[case]
    parallel = PARALLEL[kind] if world_size > 1 else {}
    if world_size > 1 and case != "grpo":  # compared with logits of all rows at once
        parallel = parallel | {"log_probs_chunk_size": 6}
    parallel = parallel | ({"opd_teacher_load": str(model)} if "use_opd" in algorithm else {})
    trainer_settings = settings_for(model, **settings, **parallel)
    # Reference and teacher exchange weights with the policy, as on a GPU. One rank alone has a model for each.
    with (
        patch.object(rank_module, "waits_on_host", lambda: case.endswith("on the host") and world_size > 1),
        patch.object(rank_module, "load_hf_weights", wraps=rank_module.load_hf_weights) as load,
    ):
        trainer = TrainerRank(trainer_settings, AlgorithmSettings(**algorithm), rank, world_size, master)
        taken = rank_module.load_hf_weights(trainer.trainee.model, *load.call_args.args[1:])
    (out / f"{kind}-{case}-{rank}.bytes_read").write_text(str(taken))
    results = []
    for step in range(STEPS):
        dump = f"{out}/{kind}-{case}-{world_size}.pt" if step == 0 else None
        results.append(trainer.train(make_batch(step, zero=True), dump))
        if step == STEPS - 2 and world_size > 1:
            trainer.save_checkpoint(out / f"{kind}-{case}")
    weights = {name: tensor.clone() for name, tensor in trainer.export_weights()}
    if rank == 0:
        save_file(weights, out / f"{kind}-{case}-{world_size}.safetensors")
    shares = write_shares(trainer, out / f"{kind}-weights") if case == "grpo" and world_size > 1 else {}
    resumed = None
    if world_size > 1:
        trainer.load_checkpoint(out / f"{kind}-{case}")
        again = trainer.train(make_batch(STEPS - 1, zero=True))
        resumed = again.optimizer_digest + again.critic_digest
    trainer.close()
    return {
        "loss": [result.metrics["loss"] for result in results],
        "grad_norm": [result.metrics["grad_norm"] for result in results],
        "difference": [result.metrics["train_rollout_logprob_abs_diff"] for result in results],
        "critic": [result.metrics.get(name, 0.0) for result in results for name in ("value_loss", "critic_grad_norm")],
        "digests": [result.optimizer_digest + result.critic_digest for result in results],
        "resumed": resumed,
        "shares": shares,
    }


def write_shares(trainer: TrainerRank, folder: Path) -> dict[str, Any]:
    """The weights as a version of shares of each rank, as if they were large."""
    least, weight_share.LEAST_BYTES = weight_share.LEAST_BYTES, 1
    store, draft = WeightStore(str(folder), durable=False), folder / ".draft"
    draft.mkdir(parents=True, exist_ok=True)
    try:
        shards = trainer.write_shards(str(draft), SHARE_BYTES, False)
        if trainer.place.rank == 0:
            store.complete(draft, 1, shards, None)
        torch.distributed.barrier()
        digest, apart = trainer.weights_digest(), trainer.weights_distance(store.folder(1))
    finally:
        weight_share.LEAST_BYTES = least
    whole = trainer.weights_digest()  # one rank's work again
    return {"files": [shard.file for shard in shards], "digest": digest, "whole": whole, "apart": apart.max_abs}


def main() -> None:
    """Run `CASES`."""
    run_all(CASES)


def run_all(cases: Sequence[tuple[str, str]]) -> None:
    """Run the cases as a rank; the words of the process are `model out rank`."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # a rank that hangs prints where
    model, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    digests = {}
    for kind, case in cases:
        master = agree(out / f"{kind}-{case}.master", rank)
        digests[f"{kind}-{case}"] = run(model, out, kind, case, rank, 2, master)
    (out / f"rank{rank}.json").write_text(json.dumps(digests))


def agree(path: Path, rank: int) -> str:
    """The address that rank 0 chose just now and left at `path`: one chosen earlier could be taken by another."""
    if rank == 0:
        partial = path.with_suffix(".partial")
        partial.write_text(rendezvous_address())
        partial.rename(path)
    while not path.exists():  # the traceback timer above is the deadline
        time.sleep(0.01)
    return path.read_text()


if __name__ == "__main__":
    main()
