"""Measure effective training time: the share of the wall time for useful steps, with a fault in every tenth step.

The protocol is that of RobustRL (arXiv 2512.22492): a training run with 10 % failure injection, and its effective
training time ratio. docs/testing.md defines the figure.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks.figure import Figure
from schemas.doc import doc
from schemas.errors import TrainerError
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated
from storage.log import Recorded
from tests.harness.chaos.aftermath import read_back
from tests.harness.chaos.killer import Struck
from tests.harness.chaos.run import log_on, survive
from tests.harness.chaos.schedule import Kind, Strike
from tests.harness.chaos.settings import RUN, ChaosSettings

STEPS, GROUPS, SAMPLES = 20, 128, 16
"""A step of 2,048 samples takes about ten seconds on two cores: long for a fsync, short for a real step."""
SHARE = 0.1
MACHINES = (Kind.TRAINER, Kind.ENGINE)
"""Roles on machines with accelerators, which are lost with their machine."""
SEED = 10
TARGET = 0.8
"""Result of the paper, whose steps take minutes."""
LONG_STEP_S = 120.0
NANO = 1e-9


def faults(steps: int, share: float, seed: int, within_s: float) -> list[Strike]:
    """Return a fault in each of `share x steps` random steps except the first and last, with alternating roles."""
    drawn = random.Random(seed)
    hit = sorted(drawn.sample(range(1, steps - 1), max(1, round(steps * share))))
    first = drawn.randrange(len(MACHINES))
    return [
        Strike(number, MACHINES[(first + number) % len(MACHINES)], step, drawn.uniform(0.0, within_s), waits=True)
        for number, step in enumerate(hit)
    ]


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Duration of a step."""

    seconds: Annotated[float, doc("From commit to commit; the first step from the first weights on an engine")]
    hit: Annotated[bool, doc("Whether a kill happened in it")]


def step_seconds(log: Sequence[Recorded], struck: Sequence[Struck]) -> list[StepSeconds]:
    """Return the steps of a run, from its log and the kills."""
    begun = next(recorded.envelope.at for recorded in log if isinstance(recorded.envelope.event, WeightsActivated))
    commits = (recorded.envelope.at for recorded in log if isinstance(recorded.envelope.event, StepCommitted))
    ends = [begun, *commits]
    return [
        StepSeconds((end - start) * NANO, any(start <= kill.at < end for kill in struck))
        for start, end in itertools.pairwise(ends)
    ]


def effective(steps: Sequence[StepSeconds], longer_s: float = 0.0) -> float:
    """Return the time of all steps without faults over their actual time. longer_s: seconds added to every step."""
    undisturbed = statistics.fmean(step.seconds for step in steps if not step.hit) + longer_s
    return undisturbed * len(steps) / sum(step.seconds + longer_s for step in steps)


def measure(steps: int = STEPS, groups: int = GROUPS, samples: int = SAMPLES) -> list[Figure]:
    """Measure in one run. A fault falls within about ten seconds after the commit before its step."""
    settings = ChaosSettings(steps=steps, groups=groups, samples=samples, eval_interval=steps)
    with tempfile.TemporaryDirectory() as name, log_on(Path(name), clustered=False) as servers:
        survived = survive(settings, faults(steps, SHARE, SEED, within_s=8.0), Path(name), servers)
        if survived.failure:
            raise TrainerError(f"the run of the benchmark did not survive: {survived.failure}")
        measured = step_seconds(read_back(Path(name) / RUN).log, survived.struck)
    plain = statistics.fmean(step.seconds for step in measured if not step.hit)
    lost = ", ".join(
        f"{kill.kind} {step.seconds - plain:.0f}"
        for kill, step in zip(survived.struck, (step for step in measured if step.hit), strict=False)
    )
    return [
        Figure(
            name=f"effective training time, faults in {SHARE:.0%} of the steps",
            value=effective(measured),
            unit="share",
            target=TARGET,
            note=(
                f"{steps} steps of {plain:.1f} s; lost, s: {lost}; "
                f"with steps of {LONG_STEP_S:.0f} s: {effective(measured, LONG_STEP_S - plain):.3f}"
            ),
        )
    ]
