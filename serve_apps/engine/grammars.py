"""`Grammars`: the grammars of requests, compiled in a process that can be killed before an engine gets them.

    a grammar -> known? -> the process (started by the first one) -> fits, or the parser's words
                                                                  -> too long, too much memory: the process is killed

SGLang compiles a grammar in its scheduler's process, without an end: 50,000 alternatives or an ambiguous rule take
minutes and gigabytes there. What compiles here within the limits does so there.
"""

import asyncio
import hashlib
import logging
import os
import signal
import socket
import subprocess
import time

import msgspec

from schemas.errors import EngineError, InvalidValue
from schemas.text import valid_text
from serve_apps.engine.messages import HEADER, read_frame
from slime_events.core.run.own_python import own_command, own_path
from slime_events.plugins.rewards.limits import environment

GRAMMAR_BYTES = 512 * 1024
COMPILE_S = 5.0
"""Seconds for a grammar, and for the first tokens of an answer under it."""
START_S = 120.0
"""Seconds for the process to import xgrammar and read the tokenizer."""
WAITING_MOST = 16
"""Grammars that wait for the process: their askers hear that they may come again."""
REMEMBERED = 1024
WORDS = 600
"""Characters of a parser's words that are passed on."""
log = logging.getLogger(__name__)


class Question(msgspec.Struct, frozen=True, array_like=True):
    """kind: SGLang's name of the sampling parameter."""

    kind: str
    text: str


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """ready: the process can compile. error: the parser's words, empty where the grammar fits."""

    ready: bool = True
    error: str = ""


class Grammars:
    """Of one model's engines. checkpoint: with its tokenizer. vocabulary: None where nobody knows it.

    One grammar is compiled at a time. Verdicts are remembered; so an agent's schema is compiled once.
    """

    def __init__(self, checkpoint: str, vocabulary: int | None, *, compile_s: float = COMPILE_S) -> None:
        self._checkpoint, self._vocabulary, self._compile_s = checkpoint, vocabulary, compile_s
        self._verdicts: dict[bytes, str] = {}
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._process: _Process | None = None
        self._can_compile = True

    async def check(self, kind: str, text: str) -> None:
        """Raise InvalidValue with the parser's words for a grammar that does not compile within the limits.

        Raises EngineError where too many others wait.
        """
        if len(text) > GRAMMAR_BYTES:
            raise InvalidValue(f"{kind}: at most {GRAMMAR_BYTES} bytes are taken, not {len(text)}")
        key = hashlib.sha256(f"{kind}:".encode() + text.encode(errors="surrogatepass")).digest()
        if key not in self._verdicts and self._can_compile:
            await self._learn(key, Question(kind, valid_text(text)))
        if error := self._verdicts.get(key):
            raise InvalidValue(f"{kind}: {error}")

    async def _learn(self, key: bytes, question: Question) -> None:
        if self._waiting >= WAITING_MOST:
            raise EngineError(f"{question.kind}: {self._waiting} other grammars wait to be compiled: come again")
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
            if verdict is None or self._process.has_ended():  # whoever asked has gone, or the process has
                self.close()
        self._verdicts[key] = verdict
        if len(self._verdicts) > REMEMBERED:
            del self._verdicts[next(iter(self._verdicts))]

    async def _start(self) -> bool:
        """Whether there is a process. Where it cannot start, for want of xgrammar say, engines judge grammars alone."""
        self._process = process = await _Process.start(self._checkpoint, self._vocabulary)
        reason = "it was ended"
        try:
            reason = await process.ready(START_S)
        finally:
            if reason:
                self.close()
        if reason:
            self._can_compile = False
            log.warning("grammars of requests are not compiled before an engine gets them: %s", reason)
        return not reason

    def close(self) -> None:
        """End the process. The next grammar starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()


class _Process:
    """One child, leader of a session of its own. It ends when its socket does."""

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
        """Why it cannot compile; empty where it can."""
        try:
            async with asyncio.timeout(within_s):
                return (await self._verdict()).error
        except TimeoutError:
            return f"its process was not ready within {within_s:g} s"
        except (asyncio.IncompleteReadError, ConnectionError):
            return "its process ended while it started"

    async def ask(self, question: Question, within_s: float) -> str:
        """The parser's words; empty where the grammar fits."""
        body = msgspec.msgpack.encode(question)
        self._writer.write(HEADER.pack(len(body)) + body)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                return valid_text((await self._verdict()).error, WORDS)
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
        """End it and reap it."""
        self._writer.close()
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()


def _spawn(descriptor: int, checkpoint: str, vocabulary: int | None) -> subprocess.Popen[bytes]:
    """Executed anew: a copy of this process would have its threads' locks. It sees no secret."""
    return subprocess.Popen(
        own_command("serve_apps.engine.grammar_process", str(descriptor), checkpoint, str(vocabulary or 0)),
        env=environment(os.environ, ()) | own_path() | {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""},
        pass_fds=(descriptor,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
