"""`Grammars`: compiles the grammars of requests before an engine gets them, in a process that can be killed.

    a grammar -> cached? -> the process (started by the first grammar) -> it fits, or the parser's message
                                                                       -> time or memory limit: the process is killed

SGLang compiles a grammar in its scheduler's process, without a limit: 50,000 alternatives or an ambiguous rule take
minutes and gigabytes there. A grammar that compiles here within the limits also does so there.
"""

import asyncio
import hashlib
import logging
import os
import signal
import socket
import subprocess
import time
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import EngineError, InvalidValue
from schemas.text import valid_text
from serve_apps.engines.messages import HEADER, read_frame
from slime_events.core.run.own_python import own_command, own_path
from slime_events.plugins.rewards.limits import environment

GRAMMAR_BYTES = 512 * 1024
COMPILE_S = 5.0
"""Time limit for a grammar and for the first tokens of an answer under it [s]."""
START_S = 120.0
"""Time limit for the process to import xgrammar and read the tokenizer [s]."""
WAITING_MOST = 16
"""Maximum number of grammars that wait for the process. Further clients are asked to retry."""
REMEMBERED = 1024
MESSAGE = 600  # characters of a parser's message that are passed on
log = logging.getLogger(__name__)


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A grammar to compile."""

    kind: Annotated[str, doc("SGLang's name of the sampling parameter.")]
    text: str


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """Answer of the process."""

    ready: Annotated[bool, doc("Whether the process can compile.")] = True
    error: Annotated[str, doc("The parser's message; empty if the grammar fits.")] = ""


class Grammars:
    """Compiler for one model's engines.

    `checkpoint` has the model's tokenizer. `vocabulary` is None if unknown. One grammar is compiled at a time. Verdicts
    are cached, so that an agent's schema is compiled once.
    """

    def __init__(self, checkpoint: str, vocabulary: int | None, *, compile_s: float = COMPILE_S) -> None:
        self._checkpoint, self._vocabulary, self._compile_s = checkpoint, vocabulary, compile_s
        self._verdicts: dict[bytes, str] = {}
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._process: _Process | None = None
        self._can_compile = True

    async def check(self, kind: str, text: str) -> None:
        """Raise InvalidValue with the parser's message for a grammar that does not compile within the limits.

        Raises EngineError if too many other grammars wait.
        """
        if len(text) > GRAMMAR_BYTES:
            raise InvalidValue(f"{kind}: at most {GRAMMAR_BYTES} bytes are allowed, not {len(text)}")
        key = hashlib.sha256(f"{kind}:".encode() + text.encode(errors="surrogatepass")).digest()
        if key not in self._verdicts and self._can_compile:
            await self._learn(key, Question(kind, valid_text(text)))
        if error := self._verdicts.get(key):
            raise InvalidValue(f"{kind}: {error}")

    async def _learn(self, key: bytes, question: Question) -> None:
        if self._waiting >= WAITING_MOST:
            raise EngineError(f"{question.kind}: {self._waiting} other grammars wait to be compiled: retry later")
        self._waiting += 1
        try:
            async with self._lock:
                if key not in self._verdicts:
                    await self._ask(key, question)
        finally:
            self._waiting -= 1

    async def _ask(self, key: bytes, question: Question) -> None:
        if self._process is None and not await self._start():
            return
        assert self._process is not None
        verdict: str | None = None
        try:
            verdict = await self._process.ask(question, self._compile_s)
        finally:
            if verdict is None or self._process.has_ended():  # the client has gone, or the process has ended
                self.close()
        self._verdicts[key] = verdict
        if len(self._verdicts) > REMEMBERED:
            del self._verdicts[next(iter(self._verdicts))]

    async def _start(self) -> bool:
        """Return whether there is a process. If it cannot start (no xgrammar, for example), only engines check."""
        self._process = process = await _Process.start(self._checkpoint, self._vocabulary)
        reason = "it was ended"
        try:
            reason = await process.ready(START_S)
        finally:
            if reason:
                self.close()
        if reason:
            self._can_compile = False
            log.warning("cannot compile the grammars of requests before an engine gets them: %s", reason)
        return not reason

    def close(self) -> None:
        """End the process. The next grammar starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()


class _Process:
    """A child process, leader of its own session. It ends when its socket closes."""

    def __init__(
        self, child: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._child, self._reader, self._writer = child, reader, writer

    @classmethod
    async def start(cls, checkpoint: str, vocabulary: int | None) -> "_Process":
        ours, theirs = socket.socketpair()
        with theirs:
            child = _spawn(theirs.fileno(), checkpoint, vocabulary)
        return cls(child, *await asyncio.open_connection(sock=ours))

    async def ready(self, within_s: float) -> str:
        """Return why it cannot compile; empty if it can."""
        try:
            async with asyncio.timeout(within_s):
                return (await self._verdict()).error
        except TimeoutError:
            return f"its process was not ready within {within_s:g} s"
        except (asyncio.IncompleteReadError, ConnectionError):
            return "its process ended while it started"

    async def ask(self, question: Question, within_s: float) -> str:
        """Return the parser's message; empty if the grammar fits."""
        body = msgspec.msgpack.encode(question)
        self._writer.write(HEADER.pack(len(body)) + body)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                return valid_text((await self._verdict()).error, MESSAGE)
        except TimeoutError:
            self.kill()
            return f"it is too large: it was not compiled within {within_s:g} s"
        except (asyncio.IncompleteReadError, ConnectionError):
            self.kill()
            return f"it is too large: its compiler ran out of memory or stack after {time.monotonic() - begun:.1f} s"

    async def _verdict(self) -> Verdict:
        return msgspec.msgpack.decode(await read_frame(self._reader), type=Verdict)

    def has_ended(self) -> bool:
        return self._child.poll() is not None

    def kill(self) -> None:
        """Kill the process and reap it."""
        self._writer.close()
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()


def _spawn(descriptor: int, checkpoint: str, vocabulary: int | None) -> subprocess.Popen[bytes]:
    """Start a new process: a fork would copy the locks of this process's threads. Its environment has no secrets."""
    return subprocess.Popen(
        own_command("serve_apps.engines.grammar_process", str(descriptor), checkpoint, str(vocabulary or 0)),
        env=environment(os.environ, ()) | own_path() | {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""},
        pass_fds=(descriptor,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
