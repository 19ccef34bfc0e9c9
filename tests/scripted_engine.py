"""`ScriptedEngine`: an `Engine` without a model, for tests and simulation only. No command uses it by default."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from schemas.errors import DeadlineExceeded, EngineError
from schemas.rollouts import StopReason, WeightSpan
from serve_apps.engines.engine import Delta, GenerateRequest, LogProbs, Tokens

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Script:
    """Define how the engine behaves. Seconds are of the running loop; faults are listed, not random.

    chunk: tokens per delta. seconds_per_chunk: delay before each delta. eos: token that ends a response, or None;
    stop_chance: chance of it per position. die_after_tokens: the engine dies after this number of tokens. start_error,
    update_error: the error of the next start or update. refused: request ids and the reason.
    """

    chunk: int = 16
    seconds_per_chunk: float = 0.0
    seconds_to_start: float = 0.0
    seconds_to_update: float = 0.0
    vocabulary: int = 256
    eos: int | None = None
    stop_chance: float = 0.0
    die_after_tokens: int | None = None
    start_error: str | None = None
    update_error: str | None = None
    refused: dict[str, str] = field(default_factory=dict)


def mixed(*parts: int) -> float:
    """A number in [0, 1) fixed by `parts` (splitmix64's finaliser over each in turn)."""
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state / (1 << 64)


class ScriptedDevice:
    """A device that engines and ranks use in turns. `mixed` is what once used it together: a fault of the turns."""

    def __init__(self) -> None:
        self.residents: dict[object, str] = {}
        self.mixed: list[str] = []
        self.changes: list[str] = []

    def enter(self, part: object) -> None:
        """Count a part as a user of the device's memory."""
        if part not in self.residents:
            self.residents[part] = type(part).__name__
            self.changes.append(f"+{type(part).__name__}")
        if len(kinds := set(self.residents.values())) > 1:
            self.mixed.append(" and ".join(sorted(kinds)))

    def leave(self, part: object) -> None:
        """The part uses no memory of the device any more."""
        if self.residents.pop(part, None) is not None:
            self.changes.append(f"-{type(part).__name__}")


class ScriptedEngine:
    """Tokens are a function of (seed, absolute position), log-probs of (seed, absolute position, version)."""

    def __init__(self, script: Script | None = None, version: int = 0, device: ScriptedDevice | None = None) -> None:
        self.script, self._device = script or Script(), device or ScriptedDevice()
        self.version = version
        self.tokens_generated = 0
        self.was_killed = False
        self._streams: dict[str, int] = {}
        self._aborted: set[str] = set()
        self._dead: str | None = "the engine has not been started"
        self._rests, self._has_weights = False, True
        self._awake = asyncio.Event()
        self._awake.set()

    @property
    def running(self) -> int:
        return sum(self._streams.values())

    async def start(self, deadline_s: float) -> None:
        if self.script.seconds_to_start > deadline_s:
            await asyncio.sleep(deadline_s)
            raise DeadlineExceeded(f"the scripted engine did not start within {deadline_s:g} s")
        await asyncio.sleep(self.script.seconds_to_start)
        if self.script.start_error is not None:
            raise EngineError(self.script.start_error)
        self._device.enter(self)
        self._dead = None

    async def stop(self) -> None:
        self._device.leave(self)
        self._dead = self._dead or "the engine was stopped"

    async def rest(self) -> None:
        """See `Engine.rest`."""
        self._check()
        if self._streams:
            raise EngineError(f"{', '.join(self._streams)} are running")
        self._device.leave(self)
        self._rests, self._has_weights = True, False

    async def wake(self) -> None:
        """See `Engine.wake`."""
        self._check()
        self._device.enter(self)
        self._rests = False

    async def healthy(self) -> bool:
        return self._dead is None

    async def abort(self, rid: str) -> None:
        if rid in self._streams:
            self._aborted.add(rid)

    async def update_weights(self, folder: str, version: int) -> float:
        """See `Engine.update_weights`. The folder is not read, but it has to be there."""
        self._check()
        if self.script.update_error is not None:
            raise EngineError(f"weights {version} from {folder} were not loaded: {self.script.update_error}")
        if not Path(folder).is_dir():
            raise EngineError(f"weights {version}: no safetensors in {folder}")
        if self._rests:
            raise EngineError(f"weights {version} were loaded into an engine that rests")
        self._awake.clear()
        try:
            await asyncio.sleep(self.script.seconds_to_update)
        finally:
            self._awake.set()
        self.version, self._has_weights = version, True
        return self.script.seconds_to_update

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        self._check()
        if (reason := self.script.refused.get(request.rid)) is not None:
            raise EngineError(f"response {request.rid} was not finished: {reason}")
        if not self._has_weights:
            raise EngineError(f"response {request.rid} was not finished: the engine has no weights")
        self._streams[request.rid] = self._streams.get(request.rid, 0) + 1
        response = request.resume.astype(np.int32)
        try:
            finish = StopReason.LENGTH if len(response) >= request.sampling.max_new_tokens else None
            if finish is not None:
                yield Delta(response[:0], np.empty(0, np.float32), (), finish, self.text(response))
            while finish is None:
                await asyncio.sleep(self.script.seconds_per_chunk)
                await self._awake.wait()
                self._check(request.rid)
                delta = self._next(request, response)
                response, finish = np.concatenate([response, delta.tokens]), delta.finish
                self.tokens_generated += len(delta.tokens)
                self._maybe_die()
                yield delta
        finally:
            self._streams[request.rid] -= 1
            if not self._streams[request.rid]:
                del self._streams[request.rid]
                self._aborted.discard(request.rid)

    async def score(self, request: GenerateRequest, tokens: Tokens) -> LogProbs:
        """See `Engine.score`: the script's log-probs are of positions, and so of any tokens."""
        self._check(request.rid)
        start = len(request.prompt) + len(request.resume)
        places = range(start, start + len(tokens))
        return np.array([self.log_prob(request.seed, place, self.version) for place in places], np.float32)

    def _next(self, request: GenerateRequest, response: Tokens) -> Delta:
        if request.rid in self._aborted:
            return Delta(response[:0], np.empty(0, np.float32), (), StopReason.ABORT, self.text(response))
        stops = {*request.sampling.stop_token_ids, *([] if self.script.eos is None else [self.script.eos])}
        tokens: list[int] = []
        log_probs: list[float] = []
        finish: StopReason | None = None
        while finish is None and len(tokens) < self.script.chunk:
            position = len(request.prompt) + len(response) + len(tokens)
            tokens.append(self.token(request.seed, position))
            log_probs.append(self.log_prob(request.seed, position, self.version))
            if tokens[-1] in stops:
                finish = StopReason.STOP
            elif len(response) + len(tokens) >= request.sampling.max_new_tokens:
                finish = StopReason.LENGTH
        new = np.array(tokens, dtype=np.int32)
        return Delta(
            tokens=new,
            log_probs=np.array(log_probs, dtype=np.float32),
            spans=(WeightSpan(len(response), len(response) + len(new), self.version),),
            finish=finish,
            text=None if finish is None else self.text(np.concatenate([response, new])),
        )

    def token(self, seed: int, position: int) -> int:
        """The token at an absolute position (prompt included)."""
        if self.script.eos is not None and mixed(seed, position, 1) < self.script.stop_chance:
            return self.script.eos
        return int(mixed(seed, position) * self.script.vocabulary)

    def log_prob(self, seed: int, position: int, version: int) -> float:
        """In (-1, 0]."""
        return -mixed(seed, position, 2, version)

    def text(self, response: Tokens) -> str:
        """Token ids with spaces between."""
        return " ".join(map(str, response.tolist()))

    def _maybe_die(self) -> None:
        limit = self.script.die_after_tokens
        if limit is not None and self.tokens_generated >= limit:
            self._dead = self._dead or "the scripted engine died, as its script says"

    def _check(self, rid: str | None = None) -> None:
        if self._dead is not None:
            raise EngineError(self._dead if rid is None else f"response {rid} was not finished: {self._dead}")
