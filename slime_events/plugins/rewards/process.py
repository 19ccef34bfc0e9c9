"""`WorkerProcess`: the pool's side of one worker process (`worker.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec

from schemas import errors
from schemas.errors import DeadlineExceeded, PlugPointError
from slime_events.core.child.frame_reader import FrameReader
from slime_events.core.child.frames import PeerEnded, frame
from slime_events.core.child.process import STDERR, Child
from slime_events.core.run.own_python import user_command
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.choice import Choice
from slime_events.plugins.user_environment import grader_environment

_answer_decoder = msgspec.msgpack.Decoder(messages.Answer)

STACK_SECONDS = 0.5
"""Time for a stuck process to write its Python stack into the log before it is killed, on a busy machine too."""


class KilledWhileLoading(PlugPointError):
    """A signal ended the process. Its grader or another process sent it."""


class WorkerProcess:
    """A child process that grades. Its stdout and stderr go to `log`."""

    def __init__(
        self,
        child: Child,
        frames: FrameReader,
        writer: asyncio.StreamWriter,
        mark: int,
        loaded: dict[Choice, messages.Loaded],
    ) -> None:
        self.child = child
        self._frames = frames
        self._writer = writer
        self._mark = mark
        self._loaded = loaded

    @classmethod
    async def start(
        cls, setup: messages.Setup, loaded: dict[Choice, messages.Loaded], log: Path | None, deadline: float
    ) -> WorkerProcess:
        """Start a process and wait until it has loaded the run's own function.

        `loaded` takes the functions that the process loads, now and later. Raises PlugPointError (or the error of the
        grader's settings) if it does not start, DeadlineExceeded after `deadline` seconds, OSError if the machine has
        no resources for it.
        """
        with contextlib.ExitStack() as unused:
            mark = os.memfd_create("grader-mark")
            unused.callback(os.close, mark)
            os.ftruncate(mark, messages.MARK.size)
            child = _start(mark, setup, log)
            unused.pop_all()
        process = cls(child, *await child.streams(), mark, loaded)
        try:
            async with asyncio.timeout(deadline):
                await process._set_up(setup)
        except TimeoutError:
            await process.kill(stack=True)
            hint = "" if log is None else f"; see {log}"
            raise DeadlineExceeded(f"a grader process was not ready within {deadline:g} s{hint}") from None
        except BaseException:  # cancelled too: no process is left
            await process.kill()
            raise
        return process

    async def _set_up(self, setup: messages.Setup) -> None:
        self._writer.write(frame(messages.encode(setup)))
        try:
            answer = _answer_decoder.decode(await self._frames.next())
        except PeerEnded as error:
            await self.kill()
            killed = (self.child.code or 0) < 0
            kind = KilledWhileLoading if killed else PlugPointError
            raise kind(f"a grader process {self.child.ending()} while it loaded its grader") from error
        if isinstance(answer, messages.SetupFailed):
            raise getattr(errors, answer.error, PlugPointError)(answer.message)
        if not isinstance(answer, messages.Loaded):
            raise PlugPointError(f"a grader process answered {type(answer).__name__} before it was ready")
        self._loaded[answer.choice] = answer

    async def grade(self, jobs: Sequence[msgspec.Raw], limit: float) -> AsyncGenerator[messages.Done, None]:
        """Grade a batch. Yields each job when it is done.

        Raises TimeoutError if no job was done for `limit` seconds, PeerEnded if the process died. The caller must then
        kill it.
        """
        self._writer.write(frame(messages.encode(list(jobs))))
        left = len(jobs)
        while left:
            answer = _answer_decoder.decode(await self._frames.next(limit))
            if isinstance(answer, messages.Loaded):
                self._loaded[answer.choice] = answer
                continue
            if not isinstance(answer, messages.Done):
                raise PeerEnded(f"a grader process answered {type(answer).__name__} to a batch")
            left -= 1
            yield answer

    def current(self) -> int | None:
        """Return the number of the job in progress, or of the last one if the process has ended."""
        (number,) = messages.MARK.unpack(os.pread(self._mark, messages.MARK.size, 0))
        return None if number == messages.IDLE else int(number)

    async def kill(self, *, stack: bool = False) -> None:
        """Kill the process and its children. It is reaped when this returns."""
        if stack and self.child.runs:
            self.child.signal(signal.SIGUSR1)
            await asyncio.sleep(STACK_SECONDS)
        await self.stop(0.0)

    async def stop(self, deadline: float) -> None:
        """Let the process finish its job and exit. Kill it after `deadline` seconds."""
        self.child.close()
        await asyncio.to_thread(self.child.end, deadline)
        if self._mark >= 0:
            os.close(self._mark)
            self._mark = -1


def _start(mark: int, setup: messages.Setup, log: Path | None) -> Child:
    with contextlib.ExitStack() as stack:
        return Child(
            user_command("slime_events.plugins.rewards.worker"),
            [str(mark)],
            environment={"PYTHONUNBUFFERED": "1", **grader_environment(os.environ, setup.settings.rm_env)},
            folder=setup.user_dir,
            output=STDERR if log is None else stack.enter_context(log.open("ab")),
            descriptors=[mark],
        )
