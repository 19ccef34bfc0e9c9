"""Compare a Megatron step of the demo's model with a plain transformers and AdamW step on the same samples.

Both run in one process and one thread by turns, with the whole batch's GRPO loss, gradient clipping and one optimizer
step. The plain step pads the batch to its longest sample, as TRL does. Our step also packs samples, compares log-probs
with the engine's, and computes the digest. CPU seconds are compared, which other work on the machine does not change.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from actors.trainer.ranks import rendezvous_address
from benchmarks.figure import Better, Figure
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.app.demo.settings import demo_settings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.training.train_batch import TrainBatch, TrainSample

PROMPT = 13
"""Tokens of a question of the demo."""
LENGTHS = (8, 32)
"""Range of response tokens, uniform, as in the middle of the demo."""


def measure(steps: int = 12) -> list[Figure]:
    """Return the ratio of medians over `steps`, after two steps for warm-up."""
    import torch

    from actors.megatron.rank import TrainerRank

    torch.set_num_threads(1)
    settings = demo_settings(Path(tempfile.gettempdir()))
    batch = demo_batch(settings)
    rank = TrainerRank(settings.trainer, settings.algorithm, 0, 1, rendezvous_address())
    try:
        ours, plain = cpu_seconds([lambda: rank.train(batch), _plain_step(settings, batch)], steps)
    finally:
        rank.close()
    tokens = sum(sample.total_length for sample in batch.samples)
    return [
        Figure(
            name="Megatron step / transformers step",
            value=plain / ours,
            unit="x",
            target=0.9,
            better=Better.HIGHER,
            note=f"{tokens / ours:.0f} against {tokens / plain:.0f} tok a CPU second, {tokens} tokens",
        )
    ]


def demo_batch(settings: TrainSettings, seed: int = 0) -> TrainBatch:
    """Return random samples in the demo's sizes. Every group has both rewards, so that every sample is trained."""
    rng = np.random.default_rng(seed)
    size, groups = settings.rollout.n_samples_per_prompt, settings.rollout.rollout_batch_size
    raw = [float(index < 1 + group % (size - 1)) for group in range(groups) for index in range(size)]
    rewards = normalize_rewards(raw, [size] * groups, settings.algorithm)
    samples = []
    for number, (reward, value) in enumerate(zip(rewards, raw, strict=True)):
        length = int(rng.integers(*LENGTHS))
        name = f"g{number // size}-s{number % size}"
        samples.append(
            TrainSample(
                sample=name,
                group=f"g{number // size}",
                rollout=name,
                tokens=rng.integers(0, 256, PROMPT + length).astype(np.int32),
                response_length=length,
                loss_mask=np.ones(length, np.int8),
                rollout_log_probs=np.full(length, -5.5, np.float32),
                reward=reward,
                raw_reward=value,
                oldest_version=0,
                newest_version=0,
            )
        )
    return TrainBatch(step=0, samples=tuple(samples))


def _plain_step(settings: TrainSettings, batch: TrainBatch) -> Callable[[], object]:
    import torch
    from transformers import AutoModelForCausalLM

    trainer, algorithm = settings.trainer, settings.algorithm
    model: Any = AutoModelForCausalLM.from_pretrained(trainer.hf_checkpoint, dtype=torch.float32).train()
    betas = (trainer.adam_beta1, trainer.adam_beta2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=trainer.lr, betas=betas, weight_decay=trainer.weight_decay)
    low, high = 1.0 - algorithm.eps_clip, 1.0 + (algorithm.eps_clip_high or algorithm.eps_clip)

    def step() -> None:
        optimizer.zero_grad()
        ids, attention, answers, advantages = _padded(batch)
        logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1].float()
        log_probs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        ratio = (log_probs - log_probs.detach()).exp()
        losses = torch.maximum(-ratio * advantages, -ratio.clamp(low, high) * advantages)
        ((losses * answers).sum(1) / answers.sum(1)).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), trainer.clip_grad)
        optimizer.step()

    return step


def _padded(batch: TrainBatch) -> tuple[Any, Any, Any, Any]:
    """Return ids and attention [n, longest], answers [n, longest - 1] and rewards [n, 1].

    answers: 1 at each position that predicts a response token.
    """
    import torch

    n, longest = len(batch.samples), max(sample.total_length for sample in batch.samples)
    ids, attention = torch.zeros(n, longest, dtype=torch.long), torch.zeros(n, longest, dtype=torch.long)
    answers = torch.zeros(n, longest - 1)
    for row, sample in enumerate(batch.samples):
        end = sample.total_length
        ids[row, :end] = torch.from_numpy(sample.tokens)
        attention[row, :end] = 1
        answers[row, end - sample.response_length - 1 : end - 1] = 1
    return ids, attention, answers, torch.tensor([[sample.reward] for sample in batch.samples])


def cpu_seconds(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Return the median CPU seconds of each call, by turns."""
    taken: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + 2):
        for call, seconds in zip(calls, taken, strict=True):
            begun = time.process_time()
            call()
            if number >= 2:
                seconds.append(time.process_time() - begun)
    return [statistics.median(seconds) for seconds in taken]
