"""`ChaosSettings`: the run that is struck. Two of them with the same settings can be compared."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import slime_events
from slime_events.app.launch.run_announcement import environment
from tests.harness.chaos.engine_log import FLAGS

RUN = "chaos"
OWN_REWARD = str(Path(__file__).with_name("own_reward.py"))
NUMBERS_FROM = ("actors/megatron", "actors/step", "serve_apps/engines", "slime_events/algorithms", "slime_events/demo")
"""Code that decides which tokens and weights come out; another reference run is made when it changes."""


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """The demo, smaller: short chunks, so that most rollouts have some; checkpoints rarer than kills; evaluations."""

    steps: int = 12
    max_staleness: int = 0
    groups: int = 16
    samples: int = 8
    save_interval: int = 4
    eval_interval: int = 10
    extra: tuple[str, ...] = ()

    def start(self, runs_dir: Path, flags_of_servers: Sequence[str] = ()) -> list[str]:
        """Return the command of a new run."""
        flags = {
            "--run": RUN,
            "--runs-dir": str(runs_dir),
            "--steps": self.steps,
            "--max-staleness": self.max_staleness,
            "--rollout-batch-size": self.groups,
            "--n-samples-per-prompt": self.samples,
            "--chunk-tokens": 4,
            "--save-interval": self.save_interval,
            "--eval-interval": self.eval_interval,
            "--custom-rm-path": OWN_REWARD,
        }
        words = [str(word) for pair in flags.items() for word in pair]
        words += ["--plain", *FLAGS, *self.extra, *flags_of_servers]
        return [sys.executable, "-m", "slime_events.app.cli.main", "demo", *words]

    def resume(self, runs_dir: Path) -> list[str]:
        """Return the command that resumes it."""
        return [
            sys.executable,
            "-m",
            "slime_events.app.cli.main",
            "resume",
            RUN,
            "--runs-dir",
            str(runs_dir),
            "--plain",
        ]

    def digest(self) -> str:
        """Return the digest of everything that the reference run's numbers depend on, in hex."""
        root = Path(slime_events.__file__).parents[1]
        digest = hashlib.sha256(json.dumps([asdict(self), environment()], sort_keys=True).encode())
        for folder in NUMBERS_FROM:
            for path in sorted((root / folder).rglob("*.py")):
                digest.update(path.read_bytes())
        return digest.hexdigest()[:16]
