"""`AgentRun`: the small run that agents train."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slime_events.app.demo.digits4 import write_data
from slime_events.app.demo.settings import BASE
from storage.nats.ports import free_port
from tests.harness.chaos.engine_log import FLAGS
from tests.harness.chaos.settings import RUN, ChaosSettings

CONTEXT = 8192
"""Tokens: the system prompt of smolagents is long, and the demo's model has a token for each byte."""
WITNESS = Path(__file__).with_name("witness.py")
NOTES = "notes"
"""Folder beside the runs', with the answers that agents received."""


@dataclass(frozen=True, slots=True)
class AgentRun:
    """Settings of the run. command: of the agent's program."""

    command: str
    steps: int = 4
    extra: tuple[str, ...] = ()

    def start(self, runs_dir: Path, flags_of_servers: Sequence[str] = ()) -> list[str]:
        """Write the files of the run's folder; return the command of a new run."""
        prompts, _ = write_data(runs_dir / "data", train=64, held_out=8)
        (runs_dir / NOTES).mkdir()
        program = shlex.join([sys.executable, "-I", "-S", str(WITNESS), str(runs_dir / NOTES)])
        flags = {
            "--run": RUN,
            "--runs-dir": runs_dir,
            "--hf-checkpoint": _base(runs_dir / "base"),
            "--prompt-data": prompts,
            "--input-key": "messages",
            "--label-key": "label",
            "--gateway": f"127.0.0.1:{free_port()}",
            "--agent-command": f"{program} {self.command}",
            "--agent-concurrency": 6,
            "--agent-timeout": 240,
            "--sglang-tool-call-parser": "qwen",
            "--num-rollout": self.steps,
            "--rollout-batch-size": 2,
            "--n-samples-per-prompt": 4,
            "--global-batch-size": 8,
            "--rollout-max-response-len": 40,
            "--rollout-temperature": 1,
            "--chunk-tokens": 4,
            "--max-attempts": 10,
            "--lr": "1e-4",
            "--clip-grad": 1,
            "--max-tokens-per-gpu": CONTEXT,
        }
        words = [str(word) for pair in flags.items() for word in pair]
        words += ["--agents", "--apply-chat-template", "--use-dynamic-batch-size", "--colocate", "--plain"]
        return [*_cli("train"), *words, *FLAGS, *self.extra, *flags_of_servers]

    def resume(self, runs_dir: Path) -> list[str]:
        """Return the command that resumes it."""
        return ChaosSettings().resume(runs_dir)


def _cli(command: str) -> list[str]:
    return [sys.executable, "-m", "slime_events.app.cli.main", command]


def _base(folder: Path) -> Path:
    """Write the demo's base with a longer context."""
    shutil.copytree(BASE, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return folder
