"""Effective training time: the share of the wall time that went into steps that counted, with a fault in every tenth.

The protocol is that of RobustRL (arXiv 2512.22492): a training run under 10 % failure injection, and its effective
training time ratio. What it is taken to be here stands in docs/chaos.md.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figure import Figure
from schemas.errors import TrainerError
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated
from storage.log import Recorded
from tests.chaos.aftermath import read_back
from tests.chaos.killer import Struck
from tests.chaos.run import log_on, survive
from tests.chaos.schedule import Kind, Strike
from tests.chaos.settings import RUN, ChaosSettings

STEPS, GROUPS, SAMPLES = 20, 128, 16
"""A step of 2,048 samples takes some ten seconds on two cores: long beside a fsync, short beside a real step."""
SHARE = 0.1
MACHINES = (Kind.TRAINER, Kind.ENGINE)
"""What runs on a machine with an accelerator, and so what a lost machine takes with it."""
SEED = 10
TARGET = 0.8
"""What the paper reports; its steps take minutes."""
LONG_STEP_S = 120.0
NANO = 1e-9


def faults(steps: int, share: float, seed: int, within_s: float) -> list[Strike]:
    """One fault in each of `share x steps` steps drawn at random, neither the first nor the last, machines in turn."""
    drawn = random.Random(seed)
    hit = sorted(drawn.sample(range(1, steps - 1), max(1, round(steps * share))))
    first = drawn.randrange(len(MACHINES))
    return [
        Strike(number, MACHINES[(first + number) % len(MACHINES)], step, drawn.uniform(0.0, within_s), waits=True)
        for number, step in enumerate(hit)
    ]


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds from commit to commit; the first from the first weights on an engine. hit: a kill fell into it."""

    seconds: float
    hit: bool


def step_seconds(log: Sequence[Recorded], struck: Sequence[Struck]) -> list[StepSeconds]:
    """The steps of a run, from its log and the kills."""
    begun = next(one.envelope.at for one in log if isinstance(one.envelope.event, WeightsActivated))
    ends = [begun, *(one.envelope.at for one in log if isinstance(one.envelope.event, StepCommitted))]
    return [
        StepSeconds((end - start) * NANO, any(start <= one.at < end for one in struck))
        for start, end in itertools.pairwise(ends)
    ]


def effective(steps: Sequence[StepSeconds], longer_s: float = 0.0) -> float:
    """All steps count: what they would have taken undisturbed, over what they took. longer_s: added to every step."""
    undisturbed = statistics.fmean(step.seconds for step in steps if not step.hit) + longer_s
    return undisturbed * len(steps) / sum(step.seconds + longer_s for step in steps)


def measure(steps: int = STEPS, groups: int = GROUPS, samples: int = SAMPLES) -> list[Figure]:
    """One run. A fault falls anywhere within some ten seconds after the commit before its step."""
    settings = ChaosSettings(steps=steps, groups=groups, samples=samples, eval_interval=steps)
    with tempfile.TemporaryDirectory() as name, log_on(Path(name), clustered=False) as servers:
        survived = survive(settings, faults(steps, SHARE, SEED, within_s=8.0), Path(name), servers)
        if survived.failure:
            raise TrainerError(f"the run of the benchmark did not survive: {survived.failure}")
        found = step_seconds(read_back(Path(name) / RUN).log, survived.struck)
    plain = statistics.fmean(step.seconds for step in found if not step.hit)
    lost = ", ".join(
        f"{one.kind} {step.seconds - plain:.0f}"
        for one, step in zip(survived.struck, (step for step in found if step.hit), strict=False)
    )
    return [
        Figure(
            name=f"effective training time, faults in {SHARE:.0%} of the steps",
            value=effective(found),
            unit="share",
            target=TARGET,
            note=(
                f"{steps} steps of {plain:.1f} s; lost, s: {lost}; "
                f"were a step {LONG_STEP_S:.0f} s long: {effective(found, LONG_STEP_S - plain):.3f}"
            ),
        )
    ]
