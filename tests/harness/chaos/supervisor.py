"""`Supervisor`: the part of systemd or a pod: it starts the run's command again after a kill, and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

LOOK_S = 0.02
AGAIN_S = 0.2
"""Seconds between the death of the command and its successor's start."""
TAIL = 1500


class RunBroke(Exception):
    """The command ended badly without having been killed; the text is its last output."""


class Supervisor:
    """The driver of the run. output: everything that it and its successors print."""

    def __init__(self, start: Sequence[str], resume: Sequence[str], output: Path) -> None:
        self._start, self._resume, self._output = list(start), list(resume), output
        self._process: subprocess.Popen[bytes] | None = None
        self._may_die = False
        self.starts = 0

    @property
    def pid(self) -> int:
        """The pid of the driver that runs now, 0 between two."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def expect_death(self) -> None:
        """Expect that the command may die of a kill: its next bad end is not its own fault."""
        self._may_die = True

    async def run(self, look: Callable[[], None] = lambda: None) -> None:
        """Wait until the command ends well. look: called again and again meanwhile. Raises RunBroke."""
        while True:
            code = await self._once(self._resume if self.starts else self._start, look)
            if code == 0:
                return
            if not self._may_die:
                raise RunBroke(f"the run's command ended with {code}: {self.last_words()}")
            self._may_die = False
            await asyncio.sleep(AGAIN_S)

    async def _once(self, command: Sequence[str], look: Callable[[], None]) -> int:
        self._process = self._spawn(command)
        self.starts += 1
        while (code := self._process.poll()) is None:
            look()
            await asyncio.sleep(LOOK_S)
        return code

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            output.write(f"$ {' '.join(command)}\n".encode())
            output.flush()
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def last_words(self) -> str:
        """Return the end of its output."""
        return self._output.read_text(errors="replace")[-TAIL:].strip()
