"""`Journal`: makes the turns of one rollout, and says each in the log as it ends."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from schemas.arrays import pack_tokens, unpack
from schemas.errors import PlugPointError, ToolInterrupted
from schemas.event import Event
from schemas.rollouts import RolloutProgressed, Sampling, StopReason
from schemas.turns import ToolCall, TurnBegun, TurnRecorded, TurnRole
from serve_apps.engine.engine import Delta, GenerateRequest, Tokens
from serve_apps.generate.rollout_context import Desk, Rests
from serve_apps.generate.turn_log import Draft, Ended, InFlight, Record, described
from serve_apps.rollout import Rollout
from serve_apps.stream import stream
from slime_events.core.trajectory import Trajectory

_canonical = msgspec.msgpack.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class Calling:
    """A tool call that was said to have begun."""

    index: int
    asked: str
    call: ToolCall


class Journal:
    """The turns of one rollout. Everything runs on the worker's event loop.

    turns: the generations so far, with their prompts, in the order they ended. failure: the first error that is not
    the function's to handle; every later ask raises it again, whatever the function does with it.
    """

    def __init__(self, rollout: Rollout, record: Record, desk: Desk) -> None:
        self._request, self._engine_id = rollout.request, rollout.engine
        self._record, self._desk = record, desk
        self._asked: Counter[str] = Counter()
        self._overlapped: set[int] = set()
        self._open: set[int] = set()
        self._saying = asyncio.Lock()
        self.turns: list[tuple[Tokens, Ended]] = []
        self.failure: BaseException | None = None

    async def generate(self, prompt: Tokens, sampling: Sampling, seed: int | None) -> Ended:
        """One generation, from the log or live. seed: default, one that depends on the sample and the prompt."""
        with self._keeping_failures():
            self._check()
            content = hashlib.sha256(np.ascontiguousarray(prompt, "<i4").tobytes())
            content.update(_canonical.encode((sampling, seed)))
            asked, occurrence = self._name(content)
            known = self._record.claim(asked, "a generation")
            if not isinstance(known, Ended):
                known = known or self._fresh()
                seed = _seed(self._request.seed, occurrence) if seed is None else seed
                known = await self._generate(prompt, sampling, seed, asked, known)
            self.turns.append((prompt, known))
            return known

    async def begin_call(self, call: ToolCall) -> Ended | Calling:
        """The result that the log holds, or leave to call the tool now: `end_call` has to follow.

        Raises ToolInterrupted where the call was in flight when its engine was lost, and may not be repeated.
        """
        with self._keeping_failures():
            self._check()
            asked, _ = self._name(hashlib.sha256(_canonical.encode((call.name, call.arguments))))
            known = self._record.claim(asked, described(call))
            if isinstance(known, Ended):
                return known
            if known is not None and not (known.call is not None and known.call.may_repeat and call.may_repeat):
                raise ToolInterrupted(
                    f"{described(call)} of rollout {self._request.sample} was in flight when its engine was lost, and "
                    "may have had its effect: pass may_repeat=True to session.call where that does no harm"
                )
            calling = Calling(self._fresh().index, asked, call)
            await self._say([self._begun(calling.index, TurnRole.TOOL, asked, call)])
            self._begin(calling.index)
            return calling

    async def end_call(self, calling: Calling, result: Any, error: str, seconds: float) -> Ended:
        """Say what a tool gave."""
        with self._keeping_failures():
            event = TurnRecorded(
                sample=self._request.sample,
                index=calling.index,
                role=TurnRole.TOOL,
                asked=calling.asked,
                engine=self._engine_id,
                call=calling.call,
                result=result,
                error=error,
                overlapping=self._end(calling.index),
                seconds=seconds,
            )
            await self._say([event])
            return Ended(event, Draft().tokens, Draft().log_probs)

    def close(self) -> None:
        """No turn more: what a function left running ends at its next word."""
        self.failure = self.failure or PlugPointError(
            f"the generate function of rollout {self._request.sample} has ended; its tasks must end with it"
        )

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._desk.rests():
            raise Rests(f"rollout {self._request.sample} rests")

    @contextlib.contextmanager
    def _keeping_failures(self) -> Iterator[None]:
        try:
            yield
        except (Exception, Rests) as error:
            self.failure = self.failure or error
            raise

    def _name(self, content: Any) -> tuple[str, int]:
        """A digest of what is asked for, and how often the same was asked for before."""
        same = content.hexdigest()
        occurrence = self._asked[same]
        self._asked[same] += 1
        return hashlib.sha256(f"{same}:{occurrence}".encode()).hexdigest(), occurrence

    def _fresh(self) -> InFlight:
        index = self._record.next_index
        self._record.next_index += 1
        return InFlight(index, Draft())

    def _begin(self, index: int) -> None:
        self._open.add(index)
        if len(self._open) > 1:
            self._overlapped |= self._open

    def _end(self, index: int) -> bool:
        self._open.discard(index)
        return index in self._overlapped

    def _begun(self, index: int, role: TurnRole, asked: str, call: ToolCall | None = None) -> TurnBegun:
        return TurnBegun(
            sample=self._request.sample,
            index=index,
            role=role,
            asked=asked,
            engine=self._engine_id,
            call=call,
            overlapping=len(self._open - {index}) > 0,
        )

    async def _say(self, events: Sequence[Event]) -> None:
        async with self._saying:  # turns side by side share one fence
            await self._desk.append(events)

    async def _generate(self, prompt: Tokens, sampling: Sampling, seed: int, asked: str, known: InFlight) -> Ended:
        begun = time.perf_counter()
        self._begin(known.index)
        draft = known.draft
        sofar = Trajectory(
            self._request.sample,
            self._request.prompt,
            tokens=draft.tokens,
            log_probs=draft.log_probs,
            spans=draft.spans,
        )
        turn = Rollout(self._request, sofar, self._engine_id)
        try:
            last = await self._stream(turn, known.index, asked, prompt, sampling, seed)
        finally:
            overlapping = self._end(known.index)
        done = turn.end(last.finish or StopReason.STOP, last.text or "")
        extends, shared = self._continues(prompt)
        event = TurnRecorded(
            sample=done.sample,
            index=known.index,
            role=TurnRole.ASSISTANT,
            asked=asked,
            engine=done.engine,
            extends=extends,
            observed=pack_tokens(prompt[shared:]),
            start=done.start,
            length=done.length,
            tokens=done.tokens,
            log_probs=done.log_probs,
            spans=done.spans,
            stop=done.stop,
            text=done.text,
            overlapping=overlapping,
            seconds=time.perf_counter() - begun,
        )
        await self._say([event])
        self._record.generated += event.tokens.n
        return Ended(
            event,
            np.concatenate([turn.known.tokens, unpack(done.tokens)]),
            np.concatenate([turn.known.log_probs, unpack(done.log_probs)]),
        )

    async def _stream(
        self, turn: Rollout, index: int, asked: str, prompt: Tokens, sampling: Sampling, seed: int
    ) -> Delta:
        """The last delta of a generation. Its chunks are said on the way, the first with the turn's beginning."""
        said = turn.known.length > 0

        async def say(chunk: RolloutProgressed) -> int:
            nonlocal said
            beginning = [] if said else [self._begun(index, TurnRole.ASSISTANT, asked)]
            await self._say([*beginning, msgspec.structs.replace(chunk, turn=index)])
            said = True
            self._record.generated += chunk.tokens.n
            return 0  # the fence is over more than the turn

        request = GenerateRequest(self._desk.rid, prompt, sampling, seed, turn.known.tokens)
        last = await stream(self._desk.engine, request, turn, self._desk.rule, rests=self._desk.rests, say=say)
        if last is None:
            raise Rests(f"rollout {self._request.sample} rests in turn {index}")
        return last

    def _continues(self, prompt: Tokens) -> tuple[int | None, int]:
        """(the turn that this prompt goes on from, how many of its tokens are that turn's)."""
        for before, ended in reversed(self.turns):
            whole = np.concatenate([before, ended.tokens])
            if len(whole) <= len(prompt) and np.array_equal(prompt[: len(whole)], whole):
                return ended.event.index, len(whole)
        return None, 0


def _seed(seed: int, occurrence: int) -> int:
    """The sample's own seed, or one of 31 bits for the n-th time that the same prompt is asked."""
    if not occurrence:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}:{occurrence}".encode(), digest_size=4).digest()) & 0x7FFFFFFF
