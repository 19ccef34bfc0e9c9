"""`GraderProcess`: the pool's side of one grader process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec

from schemas import errors
from schemas.errors import DeadlineExceeded, PlugPointError
from slime_events.plugins.rewards import limits, messages

# -P keeps the working directory out of sys.path. Our own root comes last, for a source tree that is not installed.
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from slime_events.plugins.rewards.worker import main; main(*map(int, sys.argv[2:]))"
)
_STDERR = 2
_ROOT = str(Path(__file__).resolve().parents[3])
_answer_decoder = msgspec.msgpack.Decoder(messages.Answer)

STACK_SECONDS = 0.5
"""Time for a stuck process to write its Python stack into the log before it is killed, on a busy machine too."""


class KilledWhileLoading(PlugPointError):
    """A signal ended the process. Its grader or another process sent it."""


class GraderProcess:
    """A child process that is started anew (no fork), leads its own session, and dies with this process.

    Its stdout and stderr go to `log`. Messages go over a socket pair.
    """

    def __init__(
        self, child: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mark: int
    ) -> None:
        self.child = child
        self._frames = messages.Frames(reader)
        self._writer = writer
        self._mark = mark
        self.ready = messages.Ready("", "", False)
        self.loaded: dict[str, messages.Loaded] = {}
        """Graders that samples name themselves, by the path or name that the sample has."""

    @classmethod
    async def start(cls, setup: messages.Setup, log: Path | None, deadline: float) -> GraderProcess:
        """Start a process and wait until it has loaded its grader.

        Raises PlugPointError (or the error of the grader's settings) if it does not start, DeadlineExceeded after
        `deadline` seconds, OSError if the machine has no resources for it.
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as unused:
            unused.enter_context(ours)
            mark = os.memfd_create("grader-mark")
            unused.callback(os.close, mark)
            os.ftruncate(mark, messages.MARK.size)
            child = _spawn(theirs.fileno(), mark, setup, log)
            unused.pop_all()
        reader, writer = await asyncio.open_connection(sock=ours)
        process = cls(child, reader, writer, mark)
        try:
            async with asyncio.timeout(deadline):
                process.ready = await process._set_up(setup)
        except TimeoutError:
            await process.kill(stack=True)
            hint = "" if log is None else f"; see {log}"
            raise DeadlineExceeded(f"a grader process was not ready within {deadline:g} s{hint}") from None
        except BaseException:  # cancelled too: no process is left
            await process.kill()
            raise
        return process

    async def _set_up(self, setup: messages.Setup) -> messages.Ready:
        self._writer.write(messages.frame(messages.encode(setup)))
        try:
            answer = _answer_decoder.decode(await self._frames.next())
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            await self.kill()
            killed = self.child.returncode < 0
            kind = KilledWhileLoading if killed else PlugPointError
            raise kind(f"a grader process {self.ending()} while it loaded its grader") from error
        if isinstance(answer, messages.SetupFailed):
            raise getattr(errors, answer.error, PlugPointError)(answer.message)
        if not isinstance(answer, messages.Ready):
            raise PlugPointError(f"a grader process answered {type(answer).__name__} before it was ready")
        return answer

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    def ending(self) -> str:
        """Return how it ended, in words."""
        code = self.child.poll()
        if code is None:
            return "stopped answering"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    async def grade(self, jobs: Sequence[msgspec.Raw], limit: float) -> AsyncGenerator[messages.Done, None]:
        """Grade a batch. Yields each job when it is done.

        Raises TimeoutError if no job was done for `limit` seconds, asyncio.IncompleteReadError or ConnectionError if
        the process died. The caller must then kill it.
        """
        self._writer.write(messages.frame(messages.encode(list(jobs))))
        left = len(jobs)
        while left:
            answer = _answer_decoder.decode(await self._payload(limit))
            if isinstance(answer, messages.Loaded):
                self.loaded[answer.key] = answer
                continue
            if not isinstance(answer, messages.Done):
                raise ConnectionError(f"a grader process answered {type(answer).__name__} to a batch")
            left -= 1
            yield answer

    async def _payload(self, limit: float) -> bytes:
        try:
            async with asyncio.timeout(limit):
                return await self._frames.next()
        except TimeoutError:
            async with asyncio.timeout(0.0):  # it may have arrived while the machine was paused
                return await self._frames.next()

    def current(self) -> int | None:
        """Return the number of the job in progress, or of the last one if the process has ended."""
        (number,) = messages.MARK.unpack(os.pread(self._mark, messages.MARK.size, 0))
        return None if number == messages.IDLE else int(number)

    async def kill(self, *, stack: bool = False) -> None:
        """Kill the process and its children. It is reaped when this returns."""
        if stack and self.alive:
            self.child.send_signal(signal.SIGUSR1)
            await asyncio.sleep(STACK_SECONDS)
        self._writer.close()
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
        await asyncio.to_thread(self.child.wait)
        if self._mark >= 0:
            os.close(self._mark)
            self._mark = -1

    async def stop(self, deadline: float) -> None:
        """Let the process finish its job and exit. Kill it after `deadline` seconds."""
        self._writer.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.child.wait, deadline)
        await self.kill()


def _spawn(connection: int, mark: int, setup: messages.Setup, log: Path | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-c", _BOOT, _ROOT, str(connection), str(mark), str(os.getpid())]
    with contextlib.ExitStack() as stack:
        sink = None if log is None else stack.enter_context(log.open("ab"))
        return subprocess.Popen(
            command,
            cwd=setup.user_dir,
            env={"PYTHONUNBUFFERED": "1", **limits.environment(os.environ, setup.settings.rm_env)},
            stdin=subprocess.DEVNULL,
            stdout=sink or _STDERR,
            stderr=sink or _STDERR,
            pass_fds=(connection, mark),
            start_new_session=True,
        )
