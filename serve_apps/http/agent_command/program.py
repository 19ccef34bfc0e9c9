"""Runs one program, from its start to the end of all its processes."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO, Self

from schemas.doc import doc
from serve_apps.http.agent_command.outcome import TIMED_OUT
from slime_events.core.child.process import kill_tree
from storage.cancellation import end_all

LOG_BYTES = 1024 * 1024
"""Bytes of a program's output that its log file keeps."""
TAIL_BYTES = 64 * 1024
LEFT_S = 2.0
"""Seconds to read output that is still in the pipes when the program has ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that has ended."""

    exit_code: Annotated[int, doc("exit code; negative: number of the signal that ended the program")]
    last_line: Annotated[str, doc("last line of the standard output that is not empty")]
    last_error: Annotated[str, doc("last line of the standard error that is not empty")] = ""


@dataclass(slots=True)
class _Output:
    """Reads both output streams: writes up to `LOG_BYTES` to the log, and keeps the end of each.

    It has its own pipes: with pipes of asyncio, a program does not end as long as one of its child processes has them.
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
        """Return the write end of a new pipe, for the program."""
        mine, theirs = os.pipe()
        self._ours.callback(os.close, theirs)
        stream = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stream)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(mine, "rb", 0))
        self._files.callback(transport.close)
        self._readers.append(asyncio.create_task(self._read(stream, is_standard=is_standard)))
        return theirs

    def close_ours(self) -> None:
        """Close our copies of the write ends, once the program has them."""
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
        """Read the rest of the output, for at most `LEFT_S` seconds."""
        await asyncio.wait(self._readers, timeout=LEFT_S)
        await end_all(*self._readers)

    def ended(self, exit_code: int) -> Ended:
        return Ended(exit_code, _last_line(self.tail), _last_line(self.errors))


def _last_line(tail: bytes) -> str:
    lines = tail.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


async def run_program(
    words: Sequence[str], *, folder: Path, log: Path, variables: Mapping[str, str], task: bytes, timeout_s: float
) -> Ended:
    """Run a program in a process group of its own, and kill all its processes at the end.

    words: the command. folder: its working directory. log: file for its output. variables: its whole environment. task:
    its standard input. It is killed after `timeout_s` seconds, or if this is cancelled. Raises OSError if it cannot be
    started.
    """
    exit_code = TIMED_OUT
    with log.open("wb") as file, tempfile.TemporaryFile() as stdin, _Output(file) as output:
        stdin.write(task)
        stdin.seek(0)
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env=dict(variables),
            stdin=stdin,
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
            kill_tree(process.pid)
            await process.wait()
            await output.end()
    return output.ended(exit_code)
