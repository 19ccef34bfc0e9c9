"""`try_it`: one run to its end, with a rank killed half-way, and what the commands say of it afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.harness.chaos.aftermath import read_back
from tests.harness.chaos.run import Survived, log_on, survive
from tests.harness.chaos.settings import RUN
from tests.harness.learning.commands import LearningRun
from tests.harness.learning.measured import Measured, measure
from tests.harness.learning.verdict import Verdict
from tests.harness.users.script import slime_events

LONGEST_S = 1800.0
"""For a command on a run that is over."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A run that is over."""

    run: LearningRun
    survived: Survived
    measured: Measured
    commands: dict[str, str]
    history: tuple[str, ...]

    def beside(self, alone: Measured) -> Verdict:
        """Return the verdict, given the one-rank run of the same model."""
        struck = [f"{strike.kind}, version {strike.version}" for strike in self.survived.struck]
        failure = [self.survived.failure] if self.survived.failure else []
        left = [f"left behind: {line}" for line in self.survived.left_behind]
        return Verdict(
            self.run.combination,
            self.measured,
            alone,
            ", ".join(struck),
            self.survived.seconds,
            self.commands,
            [*failure, *left, *self.history],
        )


def try_it(run: LearningRun, folder: Path) -> Tried:
    """Run it in a new folder, and read it back with the public commands."""
    folder.mkdir(parents=True)
    with log_on(folder, clustered=False) as servers:
        survived = survive(run, run.strikes(), folder, servers)
    after = read_back(folder / RUN)
    measured = measure(after.log, after.fetch)
    commands = {"audit": after.audit}
    for command in ("replay", "retrain"):
        done = slime_events(command, RUN, "--runs-dir", str(folder), cwd=folder, timeout_s=LONGEST_S)
        commands[command] = f"{done.stdout}{done.stderr}".strip() if done.returncode else ""
    return Tried(run, survived, measured, commands, after.history)
