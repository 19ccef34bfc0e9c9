"""One program, from its start to the end of all of its processes."""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

import psutil  # type: ignore[import-untyped, unused-ignore]

from serve_apps.agent_command.outcome import TIMED_OUT
from storage.cancellation import end_all

LOG_BYTES = 1024 * 1024
"""Of a program's output that are kept."""
TAIL_BYTES = 64 * 1024
LEFT_S = 2.0
"""For output that is still under way when the program has ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """exit_code: minus a signal's number, where one ended it. last_line: of the standard output. last_error: the last
    line of the standard error.
    """

    exit_code: int
    last_line: str
    last_error: str = ""


@dataclass(slots=True)
class _Output:
    """Of both streams, up to `LOG_BYTES`; and the end of each. The pipes are its own: with asyncio's, a program has not
    ended while a process that it left holds them.
    """

    log: BinaryIO
    room: int = LOG_BYTES
    tail: bytes = b""
    errors: bytes = b""
    _readers: list[asyncio.Task[None]] = field(default_factory=list)
    _files: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _ours: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_ours()
        self._files.close()

    async def pipe(self, *, is_standard: bool) -> int:
        """The end for the program to write to."""
        mine, theirs = os.pipe()
        self._ours.callback(os.close, theirs)
        stream = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stream)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(mine, "rb", 0))
        self._files.callback(transport.close)
        self._readers.append(asyncio.create_task(self._read(stream, is_standard=is_standard)))
        return theirs

    def close_ours(self) -> None:
        """What the program has now."""
        self._ours.close()

    async def _read(self, stream: asyncio.StreamReader, *, is_standard: bool) -> None:
        while data := await stream.read(TAIL_BYTES):
            self.log.write(data[: self.room])
            self.room = max(0, self.room - len(data))
            if is_standard:
                self.tail = (self.tail + data)[-TAIL_BYTES:]
            else:
                self.errors = (self.errors + data)[-TAIL_BYTES:]

    async def end(self) -> None:
        """Read what is still under way."""
        await asyncio.wait(self._readers, timeout=LEFT_S)
        await end_all(*self._readers)

    def ended(self, exit_code: int) -> Ended:
        """Of the program whose output this is."""
        return Ended(exit_code, _last_line(self.tail), _last_line(self.errors))


def _last_line(tail: bytes) -> str:
    lines = tail.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


async def run_program(
    words: Sequence[str], *, folder: Path, log: Path, variables: Mapping[str, str], task: bytes, timeout_s: float
) -> Ended:
    """Run it in a folder and a process group of its own, with `task` as its input. variables: all of its environment.
    log: gets its output. At its end, after `timeout_s` or where this is cancelled, what is left of it is killed.

    Raises OSError where it cannot be started.
    """
    exit_code = TIMED_OUT
    with log.open("wb") as file, tempfile.TemporaryFile() as given, _Output(file) as output:
        given.write(task)
        given.seek(0)
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env=dict(variables),
            stdin=given,
            stdout=await output.pipe(is_standard=True),
            stderr=await output.pipe(is_standard=False),
            start_new_session=True,
        )
        output.close_ours()
        try:
            async with asyncio.timeout(timeout_s):
                exit_code = await process.wait()
        except TimeoutError:
            file.write(f"\nkilled after {timeout_s:g} s\n".encode())
        finally:
            end_all_of(process.pid)
            await process.wait()
            await output.end()
    return output.ended(exit_code)


def end_all_of(pid: int) -> None:
    """Kill a process, its group, and its descendants in other groups as far as they can be found."""
    family = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(psutil.Error):  # psutil compares start times, so that no other process is hit
            process.kill()
