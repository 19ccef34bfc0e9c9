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
import subprocess
import time
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import EngineError, InvalidValue
from schemas.text import valid_text
from slime_events.core.child.frame_reader import FrameReader
from slime_events.core.child.frames import PeerEnded, frame
from slime_events.core.child.process import Child
from slime_events.core.run.own_python import own_command, own_path
from slime_events.plugins.user_environment import grader_environment

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
    """A child process that compiles. Its environment has no secrets."""

    def __init__(self, child: Child, frames: FrameReader, writer: asyncio.StreamWriter) -> None:
        self._child, self._frames, self._writer = child, frames, writer

    @classmethod
    async def start(cls, checkpoint: str, vocabulary: int | None) -> "_Process":
        own = own_path() | {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
        child = Child(
            own_command("serve_apps.engines.grammar_process"),
            [checkpoint, str(vocabulary or 0)],
            environment=grader_environment(os.environ, ()) | own,
            output=subprocess.DEVNULL,
        )
        return cls(child, *await child.streams())

    async def ready(self, within_s: float) -> str:
        """Return why it cannot compile; empty if it can."""
        try:
            return (await self._verdict(within_s)).error
        except TimeoutError:
            return f"its process was not ready within {within_s:g} s"
        except PeerEnded:
            return "its process ended while it started"

    async def ask(self, question: Question, within_s: float) -> str:
        """Return the parser's message; empty if the grammar fits."""
        self._writer.write(frame(msgspec.msgpack.encode(question)))
        begun = time.monotonic()
        try:
            return valid_text((await self._verdict(within_s)).error, MESSAGE)
        except TimeoutError:
            self.kill()
            return f"it is too large: it was not compiled within {within_s:g} s"
        except PeerEnded:
            self.kill()
            return f"it is too large: its compiler ran out of memory or stack after {time.monotonic() - begun:.1f} s"

    async def _verdict(self, within_s: float) -> Verdict:
        return msgspec.msgpack.decode(await self._frames.next(within_s), type=Verdict)

    def has_ended(self) -> bool:
        return not self._child.runs

    def kill(self) -> None:
        """Kill the process and reap it."""
        self._child.close()
        self._child.end()
