"""Measure the idle share of two pipeline stages, the bubble, against (stages - 1) / (micro batches + stages - 1).

Two processes train steps with the trainer's own schedule (Megatron's 1F1B). Each stage records its forward and backward
passes in the order in which they run, with their CPU seconds. The recorded order of each stage is then laid on a
timeline: a pass begins when its stage has ended the one before it, and when the neighbour has computed its input. Each
pass takes the median CPU seconds of the passes of its kind and stage, which other work on the machine hardly changes;
sending takes no time. The bubble is the idle share of both stages until the last pass ends. It is larger than computed
if the schedule waits more than it must, or if the stages take unequal time: all samples have one length, and the layers
are cut evenly, but the last stage also computes the loss. The note has the bubble of passes of equal length (the order
alone), and the idle share by the clock, which includes sending and, if the machine does other work, waiting for a core.
"""

from __future__ import annotations

import faulthandler
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks.figure import Better, Figure
from slime_events.core.training.train_batch import TrainBatch
from tests.megatron.ranks import agree
from tests.megatron.tiny import VOCAB, make_batch, make_model, settings_for
from tests.megatron.two_processes import run_two

SIZES: dict[str, Any] = {"num_hidden_layers": 16, "hidden_size": 192, "intermediate_size": 512}
STAGES = 2
MICRO_BATCHES = (4, 8)
"""Numbers of micro batches of a step."""
SAMPLES = 4
"""Samples of a micro batch."""
PROMPT, RESPONSE = 4, 92
"""Tokens of each sample."""
STEPS = 4
"""Steps of each number of micro batches; the first one is not counted."""
TARGET = 1.2
"""The stages differ by up to 4 % here, which makes the bubble of 8 micro batches a fifth larger."""
DEADLINE_S = 280


class Pass(NamedTuple):
    """A pass of a micro batch through a stage. Seconds of the clock, and of the CPU."""

    is_forward: bool
    micro_batch: int
    begun: float
    ended: float
    cpu: float


def measure() -> list[Figure]:
    """Return the measured bubble as a multiple of the computed one, for each number of micro batches."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_model(folder / "model", tied=False, **SIZES)
        run_two("benchmarks.pipeline", folder / "model", folder)
        ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(STAGES)]
    return [_figure(count, [[[Pass(*each) for each in step] for step in rank[str(count)]] for rank in ranks])
            for count in MICRO_BATCHES]  # fmt: skip


def _figure(count: int, stages: Sequence[Sequence[Sequence[Pass]]]) -> Figure:
    """stages: the steps of each stage, and the passes of each step."""
    computed = (STAGES - 1) / (count + STAGES - 1)
    order = [[(each.is_forward, each.micro_batch) for each in steps[0]] for steps in stages]
    seconds = [_seconds_of_a_kind(steps) for steps in stages]
    measured = bubble(order, seconds)
    equal = bubble(order, [[1.0 if is_forward else 2.0 for is_forward, _ in each] for each in order])
    walls = [_idle_by_clock([steps[number] for steps in stages]) for number in range(len(stages[0]))]
    return Figure(
        name=f"bubble of PP 2, {count} micro batches", value=measured / computed, unit="x computed", target=TARGET,
        better=Better.LOWER,
        note=f"{measured:.3f} of the time, computed {computed:.3f}; with equal passes {equal:.3f}, by the clock "
        f"{statistics.median(walls):.3f}; CPU ms of a stage "
        + " and ".join(f"{sum(each) * 1000:.0f}" for each in seconds),
    )  # fmt: skip


def _seconds_of_a_kind(steps: Sequence[Sequence[Pass]]) -> list[float]:
    """Return the median CPU seconds of each pass of a step, which are those of its kind."""
    median = {
        kind: statistics.median(each.cpu for step in steps for each in step if each.is_forward is kind)
        for kind in (True, False)
    }
    return [median[each.is_forward] for each in steps[0]]


def bubble(order: Sequence[Sequence[tuple[bool, int]]], seconds: Sequence[Sequence[float]]) -> float:
    """Return the idle share of the stages until the last pass ends.

    order: for each stage, its passes as (is forward, micro batch), as they ran. seconds: of each of these.
    """
    ends: dict[tuple[int, bool, int], float] = {}
    clock, place = [0.0] * len(order), [0] * len(order)
    while any(at < len(passes) for at, passes in zip(place, order, strict=True)):
        before = sum(place)
        for stage, passes in enumerate(order):
            while place[stage] < len(passes):
                is_forward, number = passes[place[stage]]
                source = stage - 1 if is_forward else stage + 1
                if 0 <= source < len(order) and (source, is_forward, number) not in ends:
                    break
                ready = max(clock[stage], ends.get((source, is_forward, number), 0.0))
                clock[stage] = ready + seconds[stage][place[stage]]
                ends[stage, is_forward, number] = clock[stage]
                place[stage] += 1
        if sum(place) == before:
            raise AssertionError("a stage waits for a pass that does not come")
    return 1 - sum(map(sum, seconds)) / (len(order) * max(clock))


def _idle_by_clock(stages: Sequence[Sequence[Pass]]) -> float:
    begun, ended = min(each[0].begun for each in stages), max(each[-1].ended for each in stages)
    busy = sum(each.ended - each.begun for passes in stages for each in passes)
    return 1 - busy / (len(stages) * (ended - begun))


class Recorder:
    """Records the passes of Megatron's schedule in this process."""

    def __init__(self) -> None:
        """Wrap the functions that the schedule calls for each pass."""
        from megatron.core.pipeline_parallel import schedules

        self.passes = list[Pass]()
        for name, is_forward in (("forward_step", True), ("backward_step", False)):
            setattr(schedules, name, self._recorded(getattr(schedules, name), is_forward=is_forward))

    def _recorded(self, call: Any, *, is_forward: bool) -> Any:
        def recorded(*args: object, **more: object) -> object:
            number = sum(each.is_forward is is_forward for each in self.passes)
            begun, cpu = time.time(), time.thread_time()
            result = call(*args, **more)
            self.passes.append(Pass(is_forward, number, begun, time.time(), time.thread_time() - cpu))
            return result

        return recorded


def _batch(groups: int) -> TrainBatch:
    """Return a batch of samples of one length."""
    random = np.random.default_rng(0)
    samples = [
        replace(
            sample,
            tokens=random.integers(0, VOCAB, PROMPT + RESPONSE).astype(np.int32),
            response_length=RESPONSE,
            loss_mask=np.ones(RESPONSE, np.int8),
            rollout_log_probs=np.full(RESPONSE, -4.0, np.float32),
        )
        for sample in make_batch(groups=groups, samples=SAMPLES).samples
    ]
    return TrainBatch(step=0, samples=tuple(samples))


def main() -> None:
    """Train as a stage; the words of the process are `model out rank`."""
    import torch

    from actors.megatron.rank import TrainerRank
    from slime_events.core.config.algorithm import AlgorithmSettings

    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)  # a rank that hangs prints where
    model, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    settings = settings_for(model, pipeline_model_parallel_size=STAGES, micro_batch_size=SAMPLES)
    trainer = TrainerRank(settings, AlgorithmSettings(), rank, STAGES, agree(out / "master", rank))
    recorder, steps = Recorder(), dict[str, list[list[Pass]]]()
    for count in MICRO_BATCHES:
        batch = _batch(count)
        for number in range(STEPS + 1):
            recorder.passes = []
            trainer.train(batch)
            if number:
                steps.setdefault(str(count), []).append(recorder.passes)
    trainer.close()
    (out / f"rank{rank}.json").write_text(json.dumps(steps))


if __name__ == "__main__":
    main()
