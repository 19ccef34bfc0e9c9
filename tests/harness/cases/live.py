"""`Place`: a folder with a case's inputs, in which commands and runs are started; `Ended`: how one ended."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from schemas.workers import WorkerLost
from slime_events.app.demo.settings import BASE
from storage.log import Recorded
from tests.harness.users.script import slime_events
from tests.run.tiny import events_of

INPUTS = Path(__file__).parent / "inputs"
SMALL = """
--input-key q --label-key a --apply-chat-template --n-samples-per-prompt 2 --rollout-batch-size 2 --global-batch-size 4
--rollout-max-response-len 8 --lr 1e-4 --rollout-temperature 1 --rollout-deadline 120
"""
"""Two groups of two samples a step, on the demo's model."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended. events: all of its run's log; empty for a command that made no run."""

    code: int
    text: str
    events: list[Recorded]

    def of(self, kind: type[T]) -> list[T]:
        """Return the events of one type."""
        return [recorded.envelope.event for recorded in self.events if isinstance(recorded.envelope.event, kind)]

    def engines_lost(self) -> list[str]:
        """Return the reasons of the workers that were lost while the run was on."""
        return [event.reason for event in self.of(WorkerLost)]


@dataclass(frozen=True, slots=True)
class Place:
    """A temporary folder: the inputs lie in it, runs in `runs`."""

    folder: Path

    def copy(self, case: str) -> None:
        """Copies the inputs of one case into the folder."""
        shutil.copytree(INPUTS / case, self.folder, dirs_exist_ok=True)

    def command(self, *arguments: str, timeout_s: float = 300) -> Ended:
        """Run a command in the folder."""
        done = slime_events(*arguments, cwd=self.folder, timeout_s=timeout_s)
        return Ended(done.returncode, done.stdout + done.stderr, [])

    def train(self, run: str, *flags: str, steps: int | None = None) -> Ended:
        """Start a run on the demo's model with the settings of `SMALL`."""
        length = ["--num-rollout", str(steps)] if steps is not None else ["--num-epoch", "1"]
        return self.run("train", "--run", run, "--hf-checkpoint", str(BASE), *SMALL.split(), *length, *flags, name=run)

    def run(self, *arguments: str, name: str) -> Ended:
        """Run a command that starts or continues the run `name`."""
        ended = self.command(*arguments, "--runs-dir", "runs")
        folder = self.folder / "runs" / name
        return Ended(ended.code, ended.text, events_of(folder) if folder.exists() else [])

    def audit(self, run: str) -> Ended:
        """Run `slime-events audit` on a run."""
        return self.command("audit", run, "--runs-dir", "runs")


def shown(value: Any, most: int = 300) -> str:
    """Shorten a value for an assertion's message."""
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."
