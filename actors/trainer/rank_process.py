"""`RankProcess`: one Megatron rank in a process of its own: `python -m actors.trainer.rank_process <pipe's fd>`.

The process answers calls from the pipe in order and ends when the pipe closes, so it never outlives its parent.
"""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from schemas.errors import RankLost, TrainerError
from slime_events.core.run.process_environment import KEEP_MEMORY, ONE_THREAD

CLOSE_S = 10.0
"""Seconds that a rank has to leave its group; then it is killed."""
QUOTED_BYTES = 600
"""Of a lost rank's output, shown with its loss."""


class RankProcess:
    """A process that has been started; calls are answered in their order."""

    def __init__(self, rank: int) -> None:
        self._rank, self._is_called = rank, False
        self._pipe, theirs = multiprocessing.Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"rank{rank}")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "actors.trainer.rank_process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env=os.environ | KEEP_MEMORY | ONE_THREAD,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt of the terminal is its parent's to handle
            )

    async def call(self, method: str, *arguments: Any) -> Any:
        """What the rank's method gave, or raises what it raised. Raises RankLost where the process has ended."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, method, arguments)

    async def close(self) -> None:
        """Let it leave the group and end; in the middle of a call it is killed."""
        if self._is_called:
            self.kill()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown()

    def kill(self) -> None:
        """End it at once; calls that wait for an answer get RankLost."""
        self._process.kill()

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        self._is_called = True
        try:
            self._pipe.send((method, arguments))
            done, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise RankLost(self._loss()) from error
        finally:
            self._is_called = False
        if done:
            return value
        raise value

    def _loss(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        code = self._process.returncode
        how = "does not answer" if code is None else "was killed" if code == -9 else f"has ended with code {code}"
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - QUOTED_BYTES))
        last = self._output.read().decode(errors="replace").strip()
        return f"rank {self._rank} {how}" + (f"; its last output: {last}" if last else "")

    def _end(self) -> None:
        self._pipe.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


class _Served:
    """The methods that a call may name: those of the rank, and the ones below."""

    def __init__(self) -> None:
        self._rank: Any = None

    def ready(self) -> None:
        """Answered once everything is imported."""

    def start(self, *args: Any) -> None:
        from actors.megatron.rank import TrainerRank

        self._rank = TrainerRank(*args)

    def export_bytes(self) -> list[tuple[str, str, tuple[int, ...], bytes]]:
        return [(name, dtype, shape, bytes(data)) for name, dtype, shape, data in self._rank.export_bytes()]

    def close(self) -> None:
        if self._rank is not None:
            self._rank.close()

    def __getattr__(self, method: str) -> Any:
        return getattr(self._rank, method)


def main() -> None:
    """Serve calls until the pipe is closed."""
    pipe, served = Connection(int(sys.argv[1])), _Served()
    gc.disable()  # nothing that an import makes is garbage: looking through it costs a tenth of the time
    import actors.megatron.rank  # noqa: F401  # takes seconds, in which the parent reads the log

    gc.freeze()
    gc.enable()
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = pipe.recv()
            answer: tuple[bool, Any]
            try:
                answer = True, getattr(served, method)(*arguments)
            except Exception as error:  # the reason is the caller's, who decides whether the rank goes on
                plain = type(error).__module__ == "schemas.errors"
                answer = False, error if plain else TrainerError(f"{type(error).__name__}: {error}")
            pipe.send(answer)
    served.close()


if __name__ == "__main__":
    main()
