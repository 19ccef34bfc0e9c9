"""`Report`: for each thing what was run and what was not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

OK, FAIL, NOT_RUN = "ok", "FAIL", "not run"
TIMEOUT_S = 120
BIN = Path(sys.executable).parent


class Report:
    """Prints a line for each check as it comes."""

    def __init__(self) -> None:
        self.failed = self.passed = self.skipped = 0

    def say(self, what: str, outcome: str, how: str) -> bool:
        """Whether it did not fail. how: what was run, or why not, or what is wrong."""
        print(f"{outcome:<8} {what:<30} {how}", flush=True)
        self.failed += outcome == FAIL
        self.passed += outcome == OK
        self.skipped += outcome == NOT_RUN
        return outcome != FAIL

    def expect(self, what: str, holds: bool, how: str) -> bool:
        """A check of our own."""
        return self.say(what, OK if holds else FAIL, how)

    def run(self, what: str, words: Sequence[str], *, more: Mapping[str, str] | None = None, why: str = "") -> bool:
        """A program over files. why: what is lost where the program is not there."""
        program = find(words[0])
        if program is None:
            return self.say(what, NOT_RUN, f"there is no {words[0]} here{': ' + why if why else ''}")
        done = subprocess.run(
            [program, *words[1:]],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, **(more or {})},
            check=False,
        )
        said = (done.stdout + done.stderr).strip()
        how = " ".join((words[0], *(Path(word).name if "/" in word else word for word in words[1:])))
        return self.say(what, OK if done.returncode == 0 else FAIL, how if done.returncode == 0 else f"{how}\n{said}")


def find(program: str) -> str | None:
    """Beside this Python, else on the PATH."""
    beside = BIN / program
    return str(beside) if beside.is_file() else shutil.which(program)
