"""`Installed`: a folder with the agents' packages, Python's and Node's, and nothing of ours."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.harness.agent_kills.agents import EXAMPLES, Agent

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Installed:
    """folder: a virtual environment, and node_modules beside the programs that import from it."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Installed:
        """Install what is not there yet. Without npm, Node's agents are not run."""
        if not (folder / "bin" / "python").exists():
            _run(sys.executable, "-m", "venv", str(folder))
            _run(str(folder / "bin" / "pip"), "install", "-q", "-r", str(HERE / "requirements.txt"))
        if shutil.which("npm") and not (folder / "node_modules").exists():
            shutil.copy(HERE / "package.json", folder)
            _run("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder))
        for program in EXAMPLES.glob("*.mjs"):
            shutil.copy(program, folder)  # Node looks for packages beside the file that imports them
        return cls(folder)

    def lacks(self, agent: Agent) -> str:
        """Return why it cannot be run; empty if it can."""
        if agent.is_node:
            is_there = (self.folder / "node_modules" / agent.package).exists() and shutil.which("node")
            return "" if is_there else f"no Node, or no package {agent.package} in {self.folder}"
        probe = [str(self.folder / "bin" / "python"), "-c", f"import {agent.package}"]
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2]

    def command(self, agent: Agent) -> str:
        """Return the command of its program."""
        words = ["node", self.folder] if agent.is_node else [self.folder / "bin" / "python", EXAMPLES]
        return shlex.join([str(words[0]), str(Path(words[1]) / agent.file)])


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=sys.stderr)
