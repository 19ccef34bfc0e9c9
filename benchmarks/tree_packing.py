"""Compare a Megatron step with and without `--tree-packing`, on paths of sessions and on groups of a prompt.

It uses the demo's model in float32, in one process and thread, with both steps by turns. The learning rate is 0, so
every step is the same, and its loss and gradient norm can be compared. CPU seconds are compared, which other work on
the machine does not change.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from actors.trainer.ranks import rendezvous_address
from benchmarks.figure import Better, Figure
from benchmarks.trainer import cpu_seconds
from slime_events.app.demo.settings import demo_settings
from slime_events.core.training.train_batch import TrainBatch, TrainSample

if TYPE_CHECKING:
    from actors.megatron.rank import TrainerRank

PATH, SHARED, PROMPT, LEAVES = 400, 300, 60, 8
"""Tokens of each path of a session, tokens that all its paths share, tokens of its prompt; number of paths."""
GROUP_PROMPT, RESPONSES = 100, (40, 120)
"""Tokens of a prompt, and the range of tokens of its responses, uniform."""
CLOSE = 1e-5


def measure(steps: int = 6) -> list[Figure]:
    """Return ratios of medians over `steps`, after two steps for warm-up."""
    import torch

    from actors.megatron.rank import TrainerRank

    torch.set_num_threads(1)
    settings = demo_settings(Path(tempfile.gettempdir()))
    trainer = replace(settings.trainer, lr=0.0, lr_warmup_iters=0, max_tokens_per_gpu=4096, num_steps_per_rollout=1)
    figures = []
    for name, batch, target in (
        ("sessions of 8 paths that share 75 %", sessions(4), 2.0),
        ("groups of 8 answers to one prompt", groups(8), 1.0),
    ):
        chosen = replace(trainer, global_batch_size=len({sample.rollout for sample in batch.samples}))
        rank = TrainerRank(chosen, settings.algorithm, 0, 1, rendezvous_address())
        try:
            figures.append(_figure(name, rank, batch, steps, target))
        finally:
            rank.close()
    return figures


def _figure(name: str, rank: TrainerRank, batch: TrainBatch, steps: int, target: float) -> Figure:
    last: dict[bool, dict[str, float]] = {}

    def step(*, on: bool) -> Callable[[], None]:
        settings = replace(rank.trainee.settings, tree_packing=on)
        trainee = dataclasses.replace(rank.trainee, settings=settings)

        def run() -> None:
            rank.trainee = trainee
            last[on] = rank.train(batch).metrics

        return run

    plain, tree = cpu_seconds([step(on=False), step(on=True)], steps)
    apart = max(abs(last[True][key] - last[False][key]) for key in ("loss", "grad_norm", "entropy"))
    tokens, shared = last[True]["tokens"], last[True]["tokens_shared"]
    return Figure(
        name=f"step / tree-packed step, {name}",
        value=plain / tree if apart <= CLOSE else None,
        unit="x",
        target=target,
        better=Better.HIGHER,
        note=(
            f"{plain:.3f} against {tree:.3f} CPU s; {shared:.0f} of {tokens:.0f} tokens not computed again; loss, "
            f"gradient norm and entropy within {apart:.1e} (1e-5 allowed)"
        ),
    )


def sessions(count: int) -> TrainBatch:
    """Return sessions whose tokens are each trained in one path: shared tokens in the first path, others in theirs."""
    rng = np.random.default_rng(0)

    def paths() -> Iterator[TrainSample]:
        for session in range(count):
            shared = rng.integers(0, 256, SHARED)
            for number in range(LEAVES):
                mask = np.ones(PATH - PROMPT, np.int8)
                mask[: SHARED - PROMPT] = number == 0
                tokens = np.concatenate([shared, rng.integers(0, 256, PATH - SHARED)])
                yield _sample(f"s{session}", f"s{session}", number, tokens, mask, rng)

    return TrainBatch(step=0, samples=tuple(paths()))


def groups(count: int) -> TrainBatch:
    """Return groups of answers of different lengths to one prompt."""
    rng = np.random.default_rng(0)

    def answers() -> Iterator[TrainSample]:
        for group in range(count):
            prompt = rng.integers(0, 256, GROUP_PROMPT)
            for number in range(LEAVES):
                length = int(rng.integers(*RESPONSES))
                tokens = np.concatenate([prompt, rng.integers(0, 256, length)])
                yield _sample(f"g{group}", f"g{group}-{number}", number, tokens, np.ones(length, np.int8), rng)

    return TrainBatch(step=0, samples=tuple(answers()))


def _sample(
    group: str,
    rollout: str,
    number: int,
    tokens: np.ndarray[Any, Any],
    mask: np.ndarray[Any, Any],
    rng: np.random.Generator,
) -> TrainSample:
    return TrainSample(
        sample=f"{group}-{number}",
        group=group,
        rollout=rollout,
        tokens=tokens.astype(np.int32),
        response_length=len(mask),
        loss_mask=mask,
        rollout_log_probs=np.full(len(mask), -5.5, np.float32),
        reward=float(rng.normal()),
        raw_reward=float(number % 2),
        oldest_version=0,
        newest_version=0,
    )
