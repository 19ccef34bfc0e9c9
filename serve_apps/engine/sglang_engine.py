"""`SglangEngine`: the real engine. SGLang runs in a host process of its own; this class drives it over a socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from schemas.errors import DeadlineExceeded, EngineError
from serve_apps.engine import messages
from serve_apps.engine.arguments import EngineLaunch, engine_launch
from serve_apps.engine.engine import Delta, GenerateRequest, LogProbs, Tokens
from serve_apps.engine.engine_folder import EngineFolder, clear_abandoned
from slime_events.core.config.engine import EngineSettings

PING_S = 5.0
UPDATE_S = 600.0
STOP_S = 10.0
Shapes = dict[str, tuple[int, ...]]
TIED = "lm_head.weight"
"""May be missing: it is the embedding again where a model ties the two."""

_ERROR_LINE = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b.*", re.MULTILINE)


class SglangEngine:
    """One SGLang engine (an `Engine`). `log` keeps SGLang's own output; without it a temporary file does.

    The caller's process neither imports SGLang nor is touched by what happens to it: a dead scheduler ends the host,
    running responses end in EngineError, `healthy` turns False, and a new SglangEngine can be started.
    """

    def __init__(self, settings: EngineSettings, version: int = 0, log: Path | None = None) -> None:
        self._launch: EngineLaunch = engine_launch(settings, version)
        checkpoint = Path(settings.hf_checkpoint)
        self._shapes = shapes_in(checkpoint) if checkpoint.is_dir() else {}
        self._version = version
        self._folder = EngineFolder()
        self._log: IO[bytes] = (log or self._folder.path / "log").open("ab+")
        self._host: subprocess.Popen[bytes] | None = None
        self._sender: messages.Sender | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[messages.Ready] | None = None
        self._failure: str | None = None
        self._numbers = itertools.count()
        self._pieces: dict[str, asyncio.Queue[messages.Piece | messages.Refused | None]] = {}
        self._ids: dict[str, str] = {}
        self._calls: dict[int, asyncio.Future[str | None]] = {}
        self._tokens_generated = 0
        self.start_seconds: dict[str, float] = {}
        self.scheduler_pids: tuple[int, ...] = ()

    @property
    def version(self) -> int:
        return self._version

    @property
    def running(self) -> int:
        return len(self._pieces)

    @property
    def tokens_generated(self) -> int:
        return self._tokens_generated

    async def start(self, deadline_s: float) -> None:
        """Start the host and wait until SGLang can generate. Raises EngineError with SGLang's own reason."""
        if self._host is not None:
            raise EngineError("the engine was started before; make a new one")
        ours, theirs = socket.socketpair()
        began = time.monotonic()
        self._host = _spawn(self._launch, self._folder.path, theirs.fileno(), self._log)
        theirs.close()
        await asyncio.to_thread(clear_abandoned)  # while SGLang is being imported
        reader, writer = await asyncio.open_connection(sock=ours)
        self._sender = messages.Sender(writer)
        self._ready = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(reader))
        self._send(messages.Launch(self._launch.arguments, fork=self._launch.device == "cpu"))
        try:
            async with asyncio.timeout(deadline_s):
                ready = await self._ready
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(
                    f"SGLang did not start within {deadline_s:g} s; its log: {_log_end(self._log)[-500:].strip()}"
                ) from None
            raise
        self.scheduler_pids = ready.processes
        self.start_seconds = ready.seconds | {"total": time.monotonic() - began}

    async def stop(self) -> None:
        """End the host and everything it started."""
        if self._host is None or self._log.closed:
            return
        self._fail("the engine was stopped")
        await _end(self._host, self.scheduler_pids)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._sender is not None:
            self._sender.close()
        self._log.close()
        self._folder.remove()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`. A request that SGLang refuses (too long, say) is an EngineError with its reason."""
        # SGLang aborts by prefix of the id, and a retry may come while its first try is being aborted.
        own_id = f"{next(self._numbers):012d}"
        pieces: asyncio.Queue[messages.Piece | messages.Refused | None] = asyncio.Queue()
        finished = False
        self._send(
            messages.Generate(
                own_id,
                request.prompt.astype("<i4").tobytes(),
                request.resume.astype("<i4").tobytes(),
                request.sampling,
                request.seed,
            )
        )
        self._pieces[own_id], self._ids[request.rid] = pieces, own_id
        try:
            while not finished:
                piece = await pieces.get()
                if piece is None or isinstance(piece, messages.Refused):
                    finished = True
                    reason = self._failure if piece is None else piece.reason
                    raise EngineError(f"response {request.rid} was not finished: {reason}")
                finished = piece.finish is not None
                self._tokens_generated += len(piece.tokens) // 4
                yield piece.delta()
        finally:
            del self._pieces[own_id]
            if self._ids.get(request.rid) == own_id:
                del self._ids[request.rid]
            if not finished and self._failure is None:
                self._send(messages.Abort(own_id))

    async def score(self, request: GenerateRequest, tokens: Tokens) -> LogProbs:
        """See `Engine.score`. What SGLang refuses is an EngineError with its reason."""
        own_id = f"{next(self._numbers):012d}"
        pieces: asyncio.Queue[messages.Piece | messages.Refused | None] = asyncio.Queue()
        prompt, resume, given = (part.astype("<i4").tobytes() for part in (request.prompt, request.resume, tokens))
        self._send(messages.Score(own_id, prompt, resume, given, request.sampling.temperature))
        self._pieces[own_id] = pieces
        try:
            piece = await pieces.get()
        finally:
            del self._pieces[own_id]
        if piece is None or isinstance(piece, messages.Refused):
            reason = self._failure if piece is None else piece.reason
            raise EngineError(f"response {request.rid} was not scored: {reason}")
        return piece.delta().log_probs

    async def update_weights(self, folder: str, version: int) -> float:
        """See `Engine.update_weights`. Weights that do not fit are refused; the engine goes on with the old ones."""
        reason = misfit(self._shapes, shapes_in(Path(folder))) if self._shapes else None
        if reason is not None:
            raise EngineError(f"weights {version} from {folder} were not loaded: {reason}")
        began = time.monotonic()
        number = next(self._numbers)
        error = await self._call(number, messages.UpdateWeights(number, folder, version), UPDATE_S)
        if error is not None:
            raise EngineError(f"weights {version} from {folder} were not loaded: {error}")
        self._version = version
        return time.monotonic() - began

    async def abort(self, rid: str) -> None:
        """See `Engine.abort`."""
        if (own_id := self._ids.get(rid)) is not None:
            self._send(messages.Abort(own_id))

    async def healthy(self) -> bool:
        """See `Engine.healthy`: the host answers a ping; it ends at once when its scheduler does."""
        if self._host is None or self._failure is not None or self._host.poll() is not None:
            return False
        number = next(self._numbers)
        try:
            return await self._call(number, messages.Ping(number), PING_S) is None
        except (EngineError, DeadlineExceeded):
            return False

    async def _call(self, number: int, frame: messages.ToHost, deadline_s: float) -> str | None:
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            self._send(frame)
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(f"SGLang did not answer {type(frame).__name__} within {deadline_s:g} s") from None
        finally:
            del self._calls[number]

    def _send(self, frame: messages.ToHost) -> None:
        if self._sender is None or self._failure is not None:
            raise EngineError(self._failure or "the engine has not been started")
        self._sender.send(frame)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Everything the host says, until it ends."""
        decoder: msgspec.msgpack.Decoder[messages.FromHost] = msgspec.msgpack.Decoder(messages.FromHost)
        reason: str | None = None
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = decoder.decode(await messages.read_frame(reader))
                if isinstance(frame, messages.Failed):
                    reason = reason or frame.reason
                self._take(frame)
        found = reason_in_log(_log_end(self._log))
        self._fail("SGLang ended: " + "; its log: ".join(part for part in (reason, found) if part))

    def _take(self, frame: messages.FromHost) -> None:
        match frame:
            case messages.Piece() | messages.Refused():
                if (pieces := self._pieces.get(frame.id)) is not None:
                    pieces.put_nowait(frame)
            case messages.Answer():
                if (answer := self._calls.get(frame.call)) is not None and not answer.done():
                    answer.set_result(frame.error)
            case messages.Ready():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(frame)
            case messages.Failed():
                pass  # the socket closes next, and the log says more

    def _fail(self, reason: str) -> None:
        """Once: everything that waits gets the reason."""
        if self._failure is not None:
            return
        self._failure = reason
        for pieces in self._pieces.values():
            pieces.put_nowait(None)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(EngineError(reason))
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(EngineError(reason))


def _spawn(launch: EngineLaunch, folder: Path, socket_fd: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the host, leader of a session of its own.

    Not by asyncio: its child watchers mind the thread that a loop runs in, and a Serve replica's is any.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "serve_apps.engine.host", str(socket_fd), str(folder)],
        env=os.environ | launch.environment | {"TMPDIR": str(folder)},
        pass_fds=(socket_fd,),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


async def _end(host: subprocess.Popen[bytes], schedulers: Sequence[int]) -> None:
    """Kill the host's session and wait for the end of it and of its schedulers. Raises DeadlineExceeded."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(host.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(STOP_S):
            # A process has no event to wait on.
            while host.poll() is None or any(map(runs, schedulers)):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise DeadlineExceeded(f"SGLang's processes did not end within {STOP_S:g} s of SIGKILL") from None


def _log_end(log: IO[bytes]) -> str:
    """The last 64 KiB of a log."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 65536))
    return log.read().decode(errors="replace")


def reason_in_log(text: str) -> str:
    """The last line of a log that names an exception, or nothing."""
    found = list(_ERROR_LINE.finditer(text))
    return found[-1].group().strip() if found else ""


def runs(pid: int) -> bool:
    """Whether the process is there and not a zombie that waits for init."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def shapes_in(folder: Path) -> Shapes:
    """Every tensor's shape, by the files' headers. Raises EngineError for no safetensors or a file that is cut short.

    SGLang 0.5.23 checks weights while it copies them over the old ones, and its scheduler dies where they do not fit.
    So they are compared with the engine's checkpoint before it gets them.
    """
    shapes: Shapes = {}
    for path in sorted(folder.glob("*.safetensors")):
        shapes |= _shapes_of_file(path)
    if not shapes:
        raise EngineError(f"no safetensors in {folder}")
    return shapes


def _shapes_of_file(path: Path) -> Shapes:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length) if length < 100_000_000 else b"")
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"{path} is not a safetensors file: {error}") from error
    if path.stat().st_size != 8 + length + end:
        raise EngineError(f"{path} has {path.stat().st_size} bytes, its header says {8 + length + end}")
    return shapes


def misfit(wanted: Shapes, given: Shapes) -> str | None:
    """The first reason why `given` cannot replace `wanted`, or None."""
    for name, shape in given.items():
        if name not in wanted and name != TIED:
            return f"tensor {name} is not in the model"
        if name in wanted and wanted[name] != shape:
            return f"tensor {name} has shape {list(shape)} ({math.prod(shape)} numbers), the model {list(wanted[name])}"
    missing = sorted(wanted.keys() - given.keys() - {TIED})
    return f"tensor {missing[0]} is missing ({len(missing)} in all)" if missing else None
