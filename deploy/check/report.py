"""`Report`: the results of checks."""

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
    """Prints a line for each check when it ends."""

    def __init__(self) -> None:
        self.failed = self.passed = self.skipped = 0

    def say(self, what: str, outcome: str, how: str) -> bool:
        """Print a result, and return whether the check did not fail. how: the command, the reason, or the error."""
        print(f"{outcome:<8} {what:<30} {how}", flush=True)
        self.failed += outcome == FAIL
        self.passed += outcome == OK
        self.skipped += outcome == NOT_RUN
        return outcome != FAIL

    def expect(self, what: str, holds: bool, how: str) -> bool:
        """Print the result of a check in Python."""
        return self.say(what, OK if holds else FAIL, how)

    def run(self, what: str, words: Sequence[str], *, more: Mapping[str, str] | None = None, why: str = "") -> bool:
        """Run a program as a check. why: added to the result if the program is not installed."""
        program = find(words[0])
        if program is None:
            return self.say(what, NOT_RUN, f"{words[0]} is not installed{': ' + why if why else ''}")
        done = subprocess.run(
            [program, *words[1:]],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, **(more or {})},
            check=False,
        )
        output = (done.stdout + done.stderr).strip()
        how = " ".join((words[0], *(Path(word).name if "/" in word else word for word in words[1:])))
        return self.say(what, OK if done.returncode == 0 else FAIL, how if done.returncode == 0 else f"{how}\n{output}")


def find(program: str) -> str | None:
    """Return the path of a program beside this Python or on the PATH; None if it is not installed."""
    beside = BIN / program
    return str(beside) if beside.is_file() else shutil.which(program)
