"""`LearningRun`: the demo with a model in a layout, and the rank that is killed half-way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.chaos.schedule import Kind, Strike
from tests.harness.chaos.settings import RUN, ChaosSettings
from tests.harness.layouts.combinations import Combination
from tests.harness.learning.models import DENSE, EXPERTS, LATENT

CASES = (
    Combination(DENSE),
    Combination(DENSE, pp=2),
    Combination(DENSE, cp=2),
    Combination(DENSE, tp=2, pp=2),
    Combination(EXPERTS),
    Combination(EXPERTS, ep=2, dp=2),
    Combination(LATENT),
    Combination(LATENT, tp=2, sp=True),
)
"""Rows of the table. Each family begins with one rank, which the others are compared with."""
STEPS = 8
KILL_DELAY_S = 0.3
"""Seconds from the half-way version to the kill: the next step is on its way."""


@dataclass(frozen=True, slots=True)
class LearningRun:
    """Commands of a run, for `tests.harness.chaos.run.survive`."""

    combination: Combination
    model: Path
    steps: int = STEPS

    @property
    def half(self) -> int:
        """The version after which a rank is killed."""
        return self.steps // 2

    def start(self, runs_dir: Path, flags_of_servers: Sequence[str] = ()) -> list[str]:
        """Return the command of a new run. A checkpoint before the kill leaves a step to be trained again."""
        flags = {
            "--run": RUN,
            "--runs-dir": runs_dir,
            "--steps": self.steps,
            "--hf-checkpoint": self.model,
            "--lr-warmup-iters": 0,
            "--eval-interval": self.half,
            "--save-interval": max(1, self.half - 1),
            "--max-tokens-per-gpu": 1024,  # several micro batches for the stages of a pipeline
            "--actor-num-gpus-per-node": self.combination.ranks,
        }
        words = [str(word) for pair in flags.items() for word in pair]
        words += [*layout_flags(self.combination), "--plain", *flags_of_servers]
        return [sys.executable, "-m", "slime_events.app.cli.main", "demo", *words]

    def resume(self, runs_dir: Path) -> list[str]:
        """Return the command that resumes it."""
        return ChaosSettings().resume(runs_dir)

    def strikes(self) -> tuple[Strike, ...]:
        """Return the kill: of the last rank, or of the trainer if it is the only rank."""
        kind = Kind.RANK if self.combination.ranks > 1 else Kind.TRAINER
        return (Strike(0, kind, self.half, KILL_DELAY_S, waits=False),)


def layout_flags(combination: Combination) -> list[str]:
    """Return the flags of a layout: those that differ from one rank's."""
    settings, alone = (
        each.settings | each.settings["megatron"] for each in (combination, Combination(combination.family))
    )
    words = list[str]()
    for name, value in settings.items():
        if name != "megatron" and value != alone.get(name):
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
    return words
