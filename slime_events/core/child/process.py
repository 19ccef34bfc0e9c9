"""`Child`: a started process with a connection to it. `kill_tree`: the end of a process with all its descendants."""

import asyncio
import contextlib
import functools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import psutil  # type: ignore[import-untyped, unused-ignore]

from slime_events.core.child.frame_reader import FrameReader

STDERR = 2


class Child:
    """A child process that is started anew (no fork), leads its own session, and dies with this process.

    program: the command. It gets the number of its socket and our process id (for `inside.connect`), then `arguments`.
    environment: its whole environment. folder: its working directory. output: where its stdout and stderr go.
    descriptors: further file descriptors that it inherits. Raises OSError if it cannot be started.

    An ended child stays a zombie until `end`, so its process id and its group remain its own until then.
    """

    def __init__(
        self,
        program: Sequence[str],
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str],
        folder: Path | str | None = None,
        output: int | IO[bytes] = STDERR,
        descriptors: Sequence[int] = (),
    ) -> None:
        self.connection, theirs = socket.socketpair()
        self._writer: asyncio.StreamWriter | None = None
        start = functools.partial(
            subprocess.Popen[bytes],
            [*program, str(theirs.fileno()), str(os.getpid()), *arguments],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(), *descriptors),
            start_new_session=True,
        )
        try:
            with theirs:
                self._process = _starter(os.getpid()).submit(start).result()
        except BaseException:  # no process has the other end
            self.connection.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    async def streams(self) -> tuple[FrameReader, asyncio.StreamWriter]:
        """Return the connection as streams of this event loop. Call it once, instead of using `connection`."""
        reader, self._writer = await asyncio.open_connection(sock=self.connection)
        return FrameReader(reader), self._writer

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        if self._process.returncode is None:
            try:
                ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # reaped by other code of this process
                return self._process.poll()
            if ended is not None:
                return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return self._process.returncode

    @property
    def runs(self) -> bool:
        return self.code is None

    def ending(self) -> str:
        """Return how it ended, in words."""
        code = self.code
        if code is None:
            return "stopped answering"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self.runs:
            os.kill(self.pid, number)

    def close(self) -> None:
        """Close the connection: a child that waits for a frame then ends. Call it in the thread of `streams`."""
        (self._writer or self.connection).close()

    def wait(self, limit_s: float) -> bool:
        """Return whether it has ended within a time. Blocks."""
        until, pause_s = time.monotonic() + limit_s, 0.001
        while self.runs and time.monotonic() < until:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return not self.runs

    def kill(self) -> None:
        """Kill it and its descendants, those of a child that has ended too. Does not wait."""
        if self._process.returncode is None:
            kill_tree(self.pid)

    def end(self, limit_s: float = 0.0) -> None:
        """Wait until it ends by itself, for at most `limit_s` seconds. Then kill what is left of it. Blocks."""
        if limit_s:
            self.wait(limit_s)
        self.kill()
        self._process.wait()


@functools.lru_cache(maxsize=1)
def _starter(process: int) -> ThreadPoolExecutor:
    """Return the thread in which this process starts children. It ends with the process, not with one of its tasks.

    The kernel kills a child with the thread that started it (`inside.die_with`).
    """
    return ThreadPoolExecutor(1, thread_name_prefix="children")


def kill_tree(pid: int) -> None:
    """Kill a process, its group, and its descendants in other groups as far as they can be found."""
    family = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(pid).children(recursive=True)
    kill_group(pid)
    for process in family:
        with contextlib.suppress(psutil.Error):  # psutil compares start times, so a reused id is safe
            process.kill()


def kill_group(pid: int) -> None:
    """Kill the process group that a process leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
