"""Run in each process of `test_context_parallel`: steps of context parallel ranks, with sequences of all lengths."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from actors.megatron.rank import TrainerRank
from actors.megatron.sharded_state import is_sharded
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.tokens.kept_tokens import KeptTokens, pack_kept
from slime_events.core.training.datums import LOSSES, AdamParams, CommandedStep, Datum, TrainPass
from slime_events.core.training.train_batch import TrainBatch, TrainSample
from slime_events.plugins.trainer_points import rank_args
from tests import made
from tests.megatron.gradients import gradients_of
from tests.megatron.ranks import agree
from tests.megatron.tiny import VOCAB, WITH_EXPERTS, settings_for

LENGTHS = ((1, 1), (2, 1), (1, 2), (3, 4), (1, 90), (33, 2), (5, 8), (7, 30), (1, 3), (2, 5), (10, 57), (1, 1))
"""(prompt, response) in tokens."""
OWN = """
import torch
from megatron.core import mpu
from slime.backends.megatron_utils.loss import get_log_probs_and_entropy

def mine(values):
    # cuts by the ranks that have parts of a sample, without slime's functions
    rank, ranks = mpu.get_context_parallel_rank(), mpu.get_context_parallel_world_size()
    return torch.where(torch.arange(len(values)) % ranks == rank, values, 0)

def summed(value):
    # sums parts over these ranks
    torch.distributed.all_reduce(value, group=mpu.get_context_parallel_group())
    return value

def nll(args, batch, logits, reduce):
    lengths = {name: batch[name] for name in ("unconcat_tokens", "total_lengths", "response_lengths")}
    assert batch["tokens"].shape == logits.shape[:2]
    log_probs = torch.cat(get_log_probs_and_entropy(logits, args=args, **lengths)[1]["log_probs"])
    copies = mpu.get_data_parallel_world_size(with_context_parallel=True) / mpu.get_data_parallel_world_size()
    loss = -reduce(mine(log_probs)) / copies
    return loss, {"loss": loss.detach(), "summed": summed(reduce(log_probs.detach()))}

def advantages(args, data):
    # from the mean over a response, of which slime's ranks have parts
    data["advantages"] = [
        (reward - summed(values.mean()) / 10).expand(len(values)).clone()
        for reward, values in zip(data["rewards"], data["rollout_log_probs"])
    ]

def data(args, rollout_id, rollout_data):
    rollout_data["advantages"] = [mine(values) * 2 for values in rollout_data["advantages"]]

def tis(args, *, pg_loss, loss_masks, **_):
    return mine(pg_loss), loss_masks, {"ranks": torch.full_like(pg_loss, mpu.get_context_parallel_world_size())}

def reducer(total_lengths, response_lengths, loss_masks, per_token):
    assert mpu.get_context_parallel_world_size() == 1, "as slime's own reducer for Dr. GRPO has it"
    return lambda values: mine(values * torch.cat(loss_masks)).sum() / 1000 * mpu.get_context_parallel_world_size()
"""
"""A user's loss, and terms of the policy loss. They cut and sum by the ranks that have parts of samples in slime."""


class Case(NamedTuple):
    """family, tied: of the model. kept: some tokens were sampled from a part of the vocabulary. commanded: a client
    drives the ranks.
    """

    family: str
    tied: bool = False
    algorithm: Mapping[str, Any] = MappingProxyType({})
    settings: Mapping[str, Any] = MappingProxyType({})
    kept: bool = False
    commanded: bool = False


WITH_VALUES = {"advantage_estimator": "ppo", "kl_coef": 0.1, "entropy_coef": 0.01, "normalize_advantages": True}
OWN_TERMS = {
    "custom_advantage_function_path": "advantages",
    "rollout_data_postprocess_path": "data",
    "custom_tis_function_path": "tis",
    "custom_pg_loss_reducer_function_path": "reducer",
}
"""Names of functions in OWN."""
SFT = {"loss_type": "sft_loss", "compute_advantages_and_returns": False}
CASES = {
    "critic": Case("qwen3", tied=True, algorithm=WITH_VALUES, settings={"log_probs_chunk_size": 5}),
    "kept": Case("qwen3", algorithm={"entropy_coef": 0.01, "use_kl_loss": True, "kl_loss_coef": 0.1}, kept=True),
    "partly rotated": Case("glm4"),
    "divided": Case("glm4", settings={"megatron": {"use_distributed_optimizer": True}}),
    "experts": Case("qwen3_moe", algorithm=SFT),
    "cut experts": Case("qwen3_moe", settings={"megatron": {"expert_model_parallel_size": 2}}),
    "own loss": Case("llama", algorithm={**SFT, "loss_type": "custom_loss", "custom_loss_function_path": "nll"}),
    "own terms": Case("llama", algorithm={"use_tis": True, **OWN_TERMS}),
    "latent": Case("deepseek_v2", settings={"log_probs_chunk_size": 7}),
    "commanded": Case("qwen2", commanded=True),
}


def odd_batch(step: int, *, kept: bool = False) -> TrainBatch:
    """Return samples of `LENGTHS`."""
    random, samples = np.random.default_rng([7, step]), []
    for index, (prompt, response) in enumerate(LENGTHS):
        mask = (random.random(response) < 0.8).astype(np.int8)
        mask[0] = 1
        tokens = random.integers(0, VOCAB, prompt + response).astype(np.int32)
        log_probs = random.uniform(-5, -3, response).astype(np.float32)
        ids = np.stack([tokens[prompt:], (tokens[prompt:] + 7) % VOCAB], 1)
        part = KeptTokens(0, pack_kept(np.full(response, 2), np.sort(ids).reshape(-1)), log_probs)
        samples.append(
            TrainSample(
                sample=f"{step}-{index}",
                group=f"{step}-{index // 4}",
                rollout=f"{step}-{index}",
                tokens=tokens,
                response_length=response,
                loss_mask=mask,
                rollout_log_probs=log_probs,
                reward=float(random.normal()),
                raw_reward=1.0,
                oldest_version=step,
                newest_version=step,
                kept=(part,) if kept and index % 2 else (),
            )
        )
    return TrainBatch(step=step, samples=tuple(samples))


def commanded_batch(step: int) -> TrainBatch:
    """Return two passes over datums and an update."""
    random, passes = np.random.default_rng([8, step]), []
    for loss in ("ppo", "cross_entropy"):
        datums = []
        for length in (1, 2, 9, 70, 5):
            inputs = {name: random.normal(size=length).astype(np.float32) for name in ("weights", "advantages")}
            inputs["logprobs"] = -random.exponential(4.0, size=length).astype(np.float32)
            datums.append(Datum(*random.integers(0, VOCAB, (2, length)).astype(np.int32), inputs))
        passes.append(TrainPass(f"{loss} {step}", loss, LOSSES[loss].config, tuple(datums)))
    update = AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.99, eps=1e-6, grad_clip_norm=0.0)
    return TrainBatch(step, (), commanded=CommandedStep(tuple(passes), update))


def run(models: Path, out: Path, name: str, rank: int, world: int, master: str, **parallel: int) -> dict[str, Any]:
    """Train two steps of a case, with a checkpoint between them, and the second step again from the checkpoint.

    One rank also reads the checkpoint that two ranks wrote.
    """
    case = CASES[name]
    settings = {**case.settings}
    algorithm = {
        name: f"{models / 'own.py'}:{value}" if name.endswith("_path") else value
        for name, value in case.algorithm.items()
    }
    megatron = dict(settings.pop("megatron", {}))
    if world == 1:
        megatron.pop("expert_model_parallel_size", None)
    else:
        settings |= {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 64, **parallel}
    own = settings_for(models / f"{case.family}-{case.tied}", clip_grad=0.0, megatron=megatron, **settings)
    chosen = AlgorithmSettings(**algorithm)
    shown = rank_args(made.settings(trainer=own, algorithm=chosen))
    trainer = TrainerRank(own, chosen, rank, world, master, shown)
    batches = [commanded_batch(step) if case.commanded else odd_batch(step, kept=case.kept) for step in range(2)]
    first = trainer.train(batches[0])
    divided = is_sharded(trainer.trainee.optimizer)  # then a rank has the sum of only its part of a gradient
    result: dict[str, Any] = {"gradients": {} if divided else gradients_of(trainer)}
    if case.commanded:
        parts = [trainer.run_pass(request, backward=False) for request in batches[0].commanded.passes]
        result["scores"] = {index: torch.from_numpy(part.log_probs) for index, part in enumerate(parts)}
    else:
        entropies: dict[int, Tensor] = {}
        samples = batches[1].samples
        result["scores"] = trainer.trainee.score(samples, range(len(samples)), 0.7, entropies)
        result["entropies"] = entropies
    trainer.save_checkpoint(out / f"{name}-{world}")
    result["saved"] = trainer.weights_digest(), first.optimizer_digest, first.critic_digest
    second = trainer.train(batches[1])
    result["weights"] = {key: tensor.clone() for key, tensor in trainer.export_weights()}
    result["metrics"] = {
        f"{step} {key}": value
        for step, trained in enumerate((first, second))
        for key, value in trained.metrics.items()
        if not key.startswith("seconds")
    }
    result["after"] = trainer.weights_digest(), second.optimizer_digest, second.critic_digest
    trainer.load_checkpoint(out / f"{name}-{world}")
    again = trainer.train(batches[1])
    result["resumed"] = trainer.weights_digest(), again.optimizer_digest, again.critic_digest
    if world == 1 and (of_two := models / f"{name}-2").exists():
        trainer.load_checkpoint(of_two)
        result["read"] = trainer.weights_digest(), trainer.optimizer_digest(), trainer.critic_digest()
    trainer.close()
    return result


def main() -> None:
    """`models out rank [ranks tensor pipeline]`: every case that a layout supports."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # a rank that hangs prints where
    models, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    world, tensor, stages = map(int, sys.argv[4:7] or (2, 1, 1))
    for name, case in CASES.items():
        if tensor > 1 and case.family in WITH_EXPERTS:
            continue
        parallel = {
            "context_parallel_size": 2,
            "tensor_model_parallel_size": tensor,
            "pipeline_model_parallel_size": stages,
        }
        result = run(models, out, name, rank, world, agree(out / f"{name}.master", rank), **parallel)
        torch.save(result, out / f"{name}.{rank}")


if __name__ == "__main__":
    main()
