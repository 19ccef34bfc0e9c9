"""Compare a step of a mixture of 4 experts, 2 for each token, with a dense step with the same active parameters.

Both models are random Qwen3 with the same sizes, except that the dense MLP is as wide as two experts. Each has a
trainer in a process of its own, in one thread; they train on the same samples, by turns. A step is a whole one, with
packing, forward and backward passes, gradient norm, Adam and the digest, the mixture's over all its parameters. CPU
seconds are compared, which other work on the machine hardly changes.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.figure import Better, Figure
from slime_events.core.training.train_batch import TrainBatch
from tests.megatron.tiny import make_batch, make_model, settings_for

SIZES = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4}
INNER = 512
"""Inner size of an expert."""
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"family": "qwen3", "intermediate_size": 2 * INNER},
    "mixture": {"family": "qwen3_moe", "moe_intermediate_size": INNER, "num_experts": 4, "num_experts_per_tok": 2},
}
GROUPS, SAMPLES = 32, 8
TOKENS = 1024
"""Most tokens of a micro batch."""
STEPS = 6
WARM_UP = 2
PROGRAM = "from benchmarks.experts import child; child()"


def measure() -> list[Figure]:
    """Return the ratio of the medians."""
    with TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        for name, sizes in MODELS.items():
            make_model(folder / name, tied=False, **SIZES | sizes)
        children = {name: stack.enter_context(_child(folder / name)) for name in MODELS}
        parameters = {name: _answer(child) for name, child in children.items()}
        rounds = [{name: _step(child) for name, child in children.items()} for _ in range(WARM_UP + STEPS)][WARM_UP:]
    seconds = {name: statistics.median(each[name] for each in rounds) for name in MODELS}
    parts = [f"{name} {seconds[name]:.2f} s of CPU, {parameters[name] / 1e6:.1f} M parameters" for name in MODELS]
    tokens = sum(sample.total_length for sample in _batch().samples)
    return [
        Figure(
            name="step of 4 experts, 2 for a token / dense step", value=seconds["mixture"] / seconds["dense"], unit="x",
            target=1.3, better=Better.LOWER, note=f"{'; '.join(parts)}; {tokens} tokens",
        )
    ]  # fmt: skip


def child() -> None:
    """Train a step for each line of the input, and print its CPU seconds; first print the number of parameters."""
    import torch

    from actors.megatron.rank import TrainerRank
    from actors.trainer.ranks import rendezvous_address
    from slime_events.core.config.algorithm import AlgorithmSettings

    torch.set_num_threads(1)
    settings = settings_for(Path(sys.argv[1]), use_dynamic_batch_size=True, max_tokens_per_gpu=TOKENS)
    trainer, batch = TrainerRank(settings, AlgorithmSettings(), 0, 1, rendezvous_address()), _batch()
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what a library prints is no answer
        print(sum(each.numel() for each in trainer.trainee.model.parameters()), file=answers, flush=True)
        for _ in sys.stdin:
            begun = time.process_time()
            trainer.train(batch)
            print(time.process_time() - begun, file=answers, flush=True)
    trainer.close()


def _batch() -> TrainBatch:
    return make_batch(groups=GROUPS, samples=SAMPLES)


@contextlib.contextmanager
def _child(model: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", PROGRAM, str(model)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def _step(process: subprocess.Popen[bytes]) -> float:
    """Let a child train a step; return the CPU seconds."""
    assert process.stdin is not None
    process.stdin.write(b"\n")
    return _answer(process)


def _answer(process: subprocess.Popen[bytes]) -> float:
    assert process.stdout is not None
    return float(process.stdout.readline())
