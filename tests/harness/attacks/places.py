"""`LiveRun`: a real run of the demo's model that an attacker finds, started by this program and ended by it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from serve_apps.http.gateway.sources import Sources
from slime_events.app.demo.digits4 import write_data
from slime_events.app.demo.settings import BASE
from storage.nats.ports import free_port
from tests.harness.attacks.environment import PLANTED
from tests.harness.attacks.scene import Scene

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
START_S, END_S, STEP_S = 240.0, 120.0, 240.0
CONTEXT = 2048
_STEP = re.compile(r"^step (\d+)/", re.MULTILINE)
COMMON = """
--input-key messages --label-key label --apply-chat-template --rollout-batch-size 2 --n-samples-per-prompt 2
--global-batch-size 4 --rollout-max-response-len 16 --rollout-temperature 1 --num-rollout 100000 --lr 1e-5
--use-dynamic-batch-size --max-tokens-per-gpu 4096 --colocate --plain --max-staleness 1 --max-attempts 3
--rollout-deadline 600 --rm-timeout 20
"""
AGENTS = """
--agents --agent-concurrency 2 --agent-timeout 120 --agent-session-seconds 300 --agent-idle-seconds 60
--rm-type exact --sglang-tool-call-parser qwen --sglang-grammar-backend xgrammar --agent-turns-per-minute 100000
"""
OWN = """
--custom-generate-function-path own_code.py:generate --custom-rm-path own_code.py:reward --reward-key score
--source-share attacker=0.6,file=0.4
"""
"""Rows of the run's own come between: many groups in a row that cannot be trained on end a run, and are meant to."""


def flags_of(kind: str, folder: Path, port: int) -> list[str]:
    """Return the flags of the command that starts a run of a kind: agents, own or tinker."""
    address = f"127.0.0.1:{port}"
    common = ["--run", "attacked", "--runs-dir", str(folder), "--hf-checkpoint", str(_base(folder / "base"))]
    if kind == "tinker":
        return [*common, "--tinker", address, "--colocate", "--plain"]
    prompts, _ = write_data(folder / "data", train=512, held_out=8)
    common += [*COMMON.split(), "--prompt-data", str(prompts), "--gateway", address]
    if kind == "own":
        shutil.copy(HERE / "own_code.py", folder)
        return [*common, *OWN.split()]
    (folder / "programs").mkdir()
    program = shlex.join([sys.executable, "-I", "-S", str(HERE / "program.py"), str(folder / "programs")])
    return [*common, *AGENTS.split(), "--agent-command", program]


def _base(folder: Path) -> Path:
    """Write the demo's base with another context."""
    shutil.copytree(BASE, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return folder


@dataclass(slots=True)
class LiveRun:
    """A run of its own process. folder: holds the run's, its data and its output. kind: agents, own or tinker."""

    kind: str
    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def run_folder(self) -> Path:
        return self.folder / "attacked"

    @property
    def health(self) -> str:
        """Path that needs no token: Tinker's protocol has its own."""
        return "/api/v1/healthz" if self.kind == "tinker" else "/healthz"

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    @property
    def steps(self) -> int:
        """Number of steps that the run has printed."""
        return max((int(number) for number in _STEP.findall(self.output)), default=0)

    def until_on(self) -> None:
        """Wait until its gateway answers and it has made a step, which a Tinker run does not. Raises RuntimeError."""
        self._until(self._answers, START_S, "its gateway does not answer")
        if self.kind != "tinker":
            self.until_steps(1, START_S)

    def until_steps(self, steps: int, seconds: float = STEP_S) -> None:
        """Wait until the run has made `steps` steps; raise RuntimeError if it does not."""
        self._until(lambda: self.steps >= steps, seconds, f"it is at step {self.steps}, not {steps}")

    def _until(self, holds: object, seconds: float, otherwise: str) -> None:
        until = time.monotonic() + seconds
        while not holds():  # type: ignore[operator]
            if self.process.poll() is not None or time.monotonic() > until:
                ended = "" if self.process.poll() is None else f"it ended with {self.process.returncode}; "
                raise RuntimeError(f"the run makes no progress: {ended}{otherwise}\n{self.output[-1500:]}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}{self.health}", timeout=5).status_code == 200
        return False

    def scene(self) -> Scene:
        token = Sources(self.run_folder).issue("attacker")
        return Scene("attacked", self.run_folder, self.port, token, self.folder)

    def end(self) -> int:
        """End the run as Ctrl-C does; return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()


@contextlib.contextmanager
def live_run(kind: str, folder: Path, *, scripted: bool = False) -> Iterator[LiveRun]:
    """Yield a live run, ended with the block. scripted: whether its engine and its trainer are."""
    port = free_port()
    words = [sys.executable, "-m", "slime_events.app.cli.main", "train", *flags_of(kind, folder, port)]
    if scripted:
        words = [sys.executable, "-m", "tests.harness.attacks.scripted", str(folder), str(port)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | PLANTED | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    run = LiveRun(kind, folder, port, process)
    try:
        run.until_on()
        yield run
    finally:
        run.end()
