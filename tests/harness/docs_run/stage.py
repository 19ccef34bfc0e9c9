"""`Stage`: a folder with what the pages presume of their reader's: models, prompts, settings, and the commands."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

from slime_events.app.demo.digits4 import write_data
from slime_events.app.demo.settings import BASE
from tests.docs.pages import ROOT
from tests.harness.docs_run.blocks import EXAMPLES, files_of

SETTINGS = """
[data]
prompt_data = "data/train.jsonl"
input_key = "messages"
label_key = "label"
apply_chat_template = true

[rollout]
num_rollout = 2
rollout_batch_size = 4
n_samples_per_prompt = 4
rollout_max_response_len = 40

[reward]
rm_type = "exact"

[engine]
colocate = true

[trainer]
hf_checkpoint = "model"
use_dynamic_batch_size = true
max_tokens_per_gpu = 8192
lr = 1e-4
"""
COMMAND = """#!/bin/sh
if [ "$DOCS_RUN_PARTS" = scripted ]; then exec {python} -m tests.harness.docs_run.scripted "$@"; fi
exec {python} -m slime_events.app.cli.main "$@"
"""
ROWS = 32


class Stage:
    """home: where the commands are typed. output: of the command that runs."""

    def __init__(self, home: Path) -> None:
        self.home, self.output = home, home / "output"
        self.ports: dict[str, int] = {}
        self.ended = threading.Event()
        """Set once the command is over."""
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self._programs()
        self._models()
        self._data()

    def environment(self, parts: str) -> dict[str, str]:
        """Return the environment of a command."""
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return os.environ | {
            "PATH": f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.home),
            "PYTHONPATH": path,
            "DOCS_RUN_PARTS": parts,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "WANDB_MODE": "offline",
            "WANDB_KEY": "0" * 40,
        }

    def close(self) -> None:
        """End the servers that were started for it."""
        for server in self.servers.values():
            server.terminate()
            server.wait()

    def take(self, page: str) -> None:
        """Put the files that a page shows where its reader would."""
        for name in ("rewards.py", "filters.py", "calculator.py"):
            shutil.copy(EXAMPLES / name, self.home)
        if page.endswith(".md"):
            for name, text in files_of(ROOT / page).items():
                (self.home / name).write_text(text)

    def port(self, name: str) -> int:
        """Return a free port, the same each time for a name."""
        if name not in self.ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.ports[name] = free.getsockname()[1]
        return self.ports[name]

    def printed(self) -> str:
        """Return the output of the command so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def write(self, name: str, *rows: object) -> Path:
        """Write a file of JSON lines."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def _programs(self) -> None:
        folder = self.home / "bin"
        folder.mkdir(parents=True)
        for name, text in {
            "slime-events": COMMAND.format(python=sys.executable),
            "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        }.items():
            (folder / name).write_text(text)
            (folder / name).chmod(stat.S_IRWXU)

    def _models(self) -> None:
        (self.home / "models").mkdir()
        for name in ("model", "teacher", "models/Qwen3-0.6B"):
            (self.home / name).symlink_to(BASE)
        (self.home / "examples").symlink_to(EXAMPLES)
        (self.home / "archive").symlink_to("slime-runs/demo/archive")

    def _data(self) -> None:
        write_data(self.home / "data", train=ROWS * 4, held_out=8)
        rows = [json.loads(line) for line in (self.home / "data" / "train.jsonl").read_text().splitlines()][:ROWS]
        texts = [(row["messages"][-1]["content"], row["label"]) for row in rows]
        self.write("questions.jsonl", *({"question": question, "answer": label} for question, label in texts))
        self.write("eval.jsonl", *rows[:4])
        self.write("chats.jsonl", *(
            {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": label}]}
            for question, label in texts
        ))  # fmt: skip
        for name in ("settings.toml", "run.toml"):
            (self.home / name).write_text(SETTINGS)
