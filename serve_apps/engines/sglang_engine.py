"""`SglangEngine`: the real engine. SGLang runs in its own host process, which this class drives over a socket."""

import asyncio
import contextlib
import hashlib
import itertools
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import DeadlineExceeded, EngineError, RequestRefused
from schemas.transfers import TransferBegun
from serve_apps.engines import messages
from serve_apps.engines.arguments import EngineLaunch, engine_launch
from serve_apps.engines.engine import Delta, GenerateRequest, LogProbs, Tokens
from serve_apps.engines.engine_folder import ARGUMENTS, EngineFolder, clear_abandoned
from serve_apps.engines.received_weights import group_ranks
from serve_apps.engines.template import ask_template
from serve_apps.engines.weight_shapes import misfit, shapes_in
from slime_events.core.child.frame_reader import FrameReader
from slime_events.core.child.frames import PeerEnded
from slime_events.core.child.process import Child, kill_group
from slime_events.core.child.process_table import runs
from slime_events.core.config.engine import EngineSettings
from slime_events.core.run.own_python import own_command, own_path
from storage.cancellation import fail

PING_S = 5.0
UPDATE_S = 600.0
STOP_S = 10.0

Answers = asyncio.Queue[messages.Piece | messages.Answer | None]

_KILLED = re.compile(rf"ended with exit code -({signal.SIGKILL:d}|{signal.SIGTERM:d})$")
_ERROR_LINE = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b.*", re.MULTILINE)


class SglangEngine:
    """One SGLang engine (an `Engine`). SGLang's output goes to `log`, by default a temporary file.

    On a CPU, `template` names the process that later engines of the run on this machine are forked from
    (engine/template.py). `name` identifies this start of the engine: see `engine_launch`.

    The caller's process does not import SGLang and is isolated from its failures. If a scheduler dies, the host ends,
    running responses end in EngineError, `healthy` turns False, and a new SglangEngine can be started.
    """

    def __init__(
        self,
        settings: EngineSettings,
        version: int = 0,
        log: Path | None = None,
        *,
        template: str | None = None,
        name: str = "",
    ) -> None:
        self._launch: EngineLaunch = engine_launch(settings, version, name)
        checkpoint = Path(settings.hf_checkpoint)
        self._shapes = shapes_in(checkpoint) if checkpoint.is_dir() else {}
        self.version, self.group_ranks = version, group_ranks(self._launch.arguments)
        self.group_backend = "nccl" if self._launch.device == "cuda" else "gloo"
        self._folder = EngineFolder()
        self._log: IO[bytes] = (log or self._folder.path / "log").open("ab+")
        self._template = f"{template}-{_name_of(self._launch)}" if template and self._launch.device == "cpu" else None
        self._host: HostProcess | None = None
        self._sender: messages.Sender | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[messages.Ready] | None = None
        self._failure: str | None = None
        self._numbers = itertools.count()
        self._answers: dict[str, Answers] = {}
        self._ids: dict[str, str] = {}
        self.tokens_generated, self.was_killed, self._is_resting = 0, False, False
        self.scheduler_pids: tuple[int, ...] = ()

    async def start(self, deadline_s: float) -> None:
        """Start the host and wait until SGLang can generate. Raises EngineError with SGLang's own reason."""
        if self._host is not None:
            raise EngineError("the engine was already started; create a new one")
        self._log_start = self._log.seek(0, os.SEEK_END)
        self._host = _start_host(self._launch, self._folder.path, self._log, self._template)
        await asyncio.to_thread(clear_abandoned)  # meanwhile the host imports SGLang
        reader, writer = await asyncio.open_connection(sock=self._host.connection)
        self._sender = messages.Sender(writer)
        self._ready = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(reader))
        try:
            async with asyncio.timeout(deadline_s):
                ready = await self._ready
        except BaseException as error:  # a cancelled start leaves no process either
            last_lines = _log_end(self._log)[-500:].strip()
            await self.stop()
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(f"SGLang did not start within {deadline_s:g} s; its log: {last_lines}") from None
            raise
        self.scheduler_pids = ready.processes

    async def stop(self) -> None:
        """End the host and all its processes."""
        if self._host is None or self._log.closed:
            return
        self._fail("the engine was stopped")
        await self._host.end(self.scheduler_pids)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._sender is not None:
            self._sender.close()
        self._log.close()
        self._folder.remove()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """Generate: see `Engine.generate`. Raises RequestRefused if SGLang refuses the request."""
        own_id, failed = self._new_id(), f"response {request.rid} was not finished"
        answers, ended = self._ask(messages.Generate(own_id, request)), False
        self._ids[request.rid] = own_id
        try:
            while not ended:
                answer = await answers.get()
                ended = not isinstance(answer, messages.Piece) or answer.delta.finish is not None
                delta = self._delta(answer, failed)
                self.tokens_generated += len(delta.tokens)
                yield delta
        finally:
            del self._answers[own_id]
            if self._ids.get(request.rid) == own_id:
                del self._ids[request.rid]
            if not ended and self._failure is None:
                self._send(messages.Abort(own_id))

    async def score(self, request: GenerateRequest, tokens: Tokens) -> LogProbs:
        """Score: see `Engine.score`. A request that SGLang refuses raises RequestRefused with its reason."""
        frame = messages.Score(self._new_id(), request, tokens)
        answers = self._ask(frame)
        try:
            return self._delta(await answers.get(), f"response {request.rid} was not scored").log_probs
        finally:
            del self._answers[frame.id]

    async def update_weights(self, folder: str, version: int) -> float:
        """Load weights: see `Engine.update_weights`. If they do not fit, the engine keeps the old ones. If SGLang fails
        to load them, its weights are unknown, and the engine is lost.
        """
        began, failed = time.monotonic(), f"weights {version} from {folder} were not loaded"
        reason = misfit(self._shapes, shapes_in(Path(folder))) if self._shapes else None
        if reason is not None:
            raise EngineError(f"{failed}: {reason}")
        if self._is_resting:
            raise EngineError(f"{failed}: the engine rests")
        await self._change(messages.UpdateWeights(self._new_id(), folder, version), failed)
        self.version = version
        return time.monotonic() - began

    async def receive_weights(self, group: TransferBegun, rank: int, digest: str) -> str | None:
        """Receive weights: see `Receiver`. If SGLang does not answer, the engine is lost."""
        try:
            error = await self._call(messages.ReceiveWeights(self._new_id(), group, rank, digest), UPDATE_S)
        except BaseException:  # cancelled too: SGLang may have some of the weights by then
            self._fail(f"weights {group.version} were not received")
            raise
        if error is None:
            self.version = group.version
        return error

    async def rest(self) -> None:
        """Give memory back: see `Engine.rest`. SGLang drops weights and cache. If it fails, the engine is lost."""
        if not self._is_resting:
            await self._change(messages.Rest(self._new_id()), "the engine did not give its memory back")
            self._is_resting = True

    async def wake(self) -> None:
        """Take memory again: see `Engine.wake`. SGLang generates after the next `update_weights`."""
        if self._is_resting:
            await self._change(messages.Wake(self._new_id()), "the engine did not take its memory again")
            self._is_resting = False

    async def _change(self, frame: messages.Request, failed: str) -> None:
        """Make a request after whose failure the engine's state is unknown. Raises EngineError."""
        try:
            if (error := await self._call(frame, UPDATE_S)) is not None:
                raise EngineError(f"{failed}: {error}")
        except BaseException:  # cancelled too
            self._fail(failed)
            raise

    async def abort(self, rid: str) -> None:
        if (own_id := self._ids.get(rid)) is not None:
            self._send(messages.Abort(own_id))

    async def healthy(self) -> bool:
        """Ping the host: see `Engine.healthy`. The host ends at once when its scheduler does."""
        if self._host is None or self._failure is not None or not self._host.runs():
            return False
        try:
            return await self._call(messages.Ping(self._new_id()), PING_S) is None
        except (EngineError, DeadlineExceeded):
            return False

    def _new_id(self) -> str:
        # Fixed width: SGLang aborts by prefix of the id, and a retry may arrive while its first try is aborted.
        return f"{next(self._numbers):012d}"

    def _ask(self, frame: messages.Request) -> Answers:
        """Send a request and return its answers, until the caller deletes them. They end with None if the host
        fails.
        """
        answers: Answers = asyncio.Queue()
        self._send(frame)
        self._answers[frame.id] = answers
        return answers

    def _delta(self, answer: messages.Piece | messages.Answer | None, failed: str) -> Delta:
        if isinstance(answer, messages.Piece):
            return answer.delta
        kind = RequestRefused if answer is not None and answer.is_refusal else EngineError
        raise kind(f"{failed}: {self._failure if answer is None else answer.error}")

    async def _call(self, frame: messages.Request, deadline_s: float) -> str | None:
        """Return the error of a request that has one answer; None if it succeeded."""
        answers = self._ask(frame)
        try:
            async with asyncio.timeout(deadline_s):
                answer = await answers.get()
        except TimeoutError:
            raise DeadlineExceeded(f"SGLang did not answer {type(frame).__name__} within {deadline_s:g} s") from None
        finally:
            del self._answers[frame.id]
        if not isinstance(answer, messages.Answer):
            raise EngineError(self._failure or f"SGLang answered {type(answer).__name__} to {type(frame).__name__}")
        return answer.error

    def _send(self, frame: messages.ToHost) -> None:
        if self._sender is None or self._failure is not None:
            raise EngineError(self._failure or "the engine has not been started")
        self._sender.send(frame)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Handle the host's frames until it ends."""
        reason: str | None = None
        frames = FrameReader(reader)
        with contextlib.suppress(PeerEnded):
            while True:
                frame = messages.from_host.decode(await frames.next())
                match frame:
                    case messages.Piece() | messages.Answer():
                        if (answers := self._answers.get(frame.id)) is not None:
                            answers.put_nowait(frame)
                    case messages.Ready():
                        if self._ready is not None and not self._ready.done():
                            self._ready.set_result(frame)
                    case messages.Failed():  # the socket closes next, and the log has details
                        reason = reason or frame.reason
        text = _log_end(self._log, self._log_start)
        log_reason = reason_in_log(text)
        self.was_killed = reason is None and ended_from_outside(text)
        self._fail("SGLang ended: " + "; its log: ".join(part for part in (reason, log_reason) if part))

    def _fail(self, reason: str) -> None:
        """Give the reason to every waiting caller. Only the first call has an effect."""
        if self._failure is not None:
            return
        self._failure = reason
        for answers in self._answers.values():
            answers.put_nowait(None)
        if self._ready is not None:
            fail(self._ready, EngineError(reason))


@dataclass(frozen=True, slots=True)
class HostProcess:
    """The host, leader of its own session."""

    pid: int
    connection: socket.socket
    child: Annotated[Child | None, doc("Set if it is a child of this process.")] = None

    def runs(self) -> bool:
        """Return whether it is still running."""
        return self.child.runs if self.child else runs(self.pid)

    async def end(self, schedulers: Sequence[int]) -> None:
        """Kill its session, and wait until the host and its schedulers have ended. Raises DeadlineExceeded."""
        kill_group(self.pid)  # not all descendants: the template lives on
        try:
            async with asyncio.timeout(STOP_S):
                # A process has no event to wait on.
                while self.runs() or any(map(runs, schedulers)):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise DeadlineExceeded(f"SGLang's processes did not end within {STOP_S:g} s of SIGKILL") from None
        if self.child:
            self.child.end()


def _start_host(launch: EngineLaunch, folder: Path, log: IO[bytes], template: str | None) -> HostProcess:
    """Start the host: forked from the template if there is one, else as a new process that leaves a template.

    Not with asyncio: its child watchers depend on the thread of the loop, and a Serve replica's loop runs in any
    thread.
    """
    (folder / ARGUMENTS).write_bytes(msgspec.json.encode(launch.arguments))
    if template:
        ours, theirs = socket.socketpair()
        with theirs:
            if (pid := ask_template(template, folder, theirs.fileno(), log.fileno())) is not None:
                return HostProcess(pid, ours)
        ours.close()
    child = Child(
        own_command("serve_apps.engines.host"),
        [str(folder), *filter(None, [template])],
        environment=os.environ | own_path() | launch.environment | {"TMPDIR": str(folder)},
        output=log,
    )
    return HostProcess(child.pid, child.connection, child)


def _name_of(launch: EngineLaunch) -> str:
    """Return a digest of the environment in which SGLang is imported."""
    return hashlib.sha256(msgspec.json.encode(launch.environment, order="deterministic")).hexdigest()[:16]


def _log_end(log: IO[bytes], start: int = 0) -> str:
    """Return at most the last 64 KiB of a log, from `start` on."""
    log.seek(0, os.SEEK_END)
    log.seek(max(start, log.tell() - 65536))
    return log.read().decode(errors="replace")


def reason_in_log(text: str) -> str:
    """Return the last line of a log that names an exception; empty without one."""
    matches = list(_ERROR_LINE.finditer(text))
    return matches[-1].group().strip() if matches else ""


def ended_from_outside(text: str) -> bool:
    """Return whether the log of a lost engine has no reason of its own: SIGKILL or SIGTERM ended its processes.

    A scheduler that fails reports it, and makes its host end the others.
    """
    reason = reason_in_log(text)
    return "hit an exception" not in text and (not reason or _KILLED.search(reason) is not None)
