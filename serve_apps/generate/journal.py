"""The turns of one rollout: `TurnLog` folds those in the log, `Journal` makes new ones and appends each as it ends.

A generate function that is run again after a crash is answered from the log until the log ends.
"""

import asyncio
import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from schemas.arrays import pack_tokens, unpack
from schemas.errors import GenerateDiffers, PlugPointError, StorageError, ToolFailed, ToolInterrupted
from schemas.event import Event
from schemas.rollouts import RolloutProgressed, Sampling, StopReason, WeightSpan
from schemas.turns import ToolCall, TurnBegun, TurnRecorded, TurnRole
from serve_apps.engine.engine import Delta, GenerateRequest, LogProbs, Tokens
from serve_apps.rollout import Rollout, RolloutContext, Suspended, stream
from slime_events.core.trajectory import Fetch, Trajectory, merge_spans

_canonical = msgspec.msgpack.Encoder(order="sorted")


@dataclass(slots=True)
class Draft:
    """The chunks of one generation. tokens: int32 [n]; log_probs: float32 [n]; spans: over them."""

    tokens: Tokens = field(default_factory=lambda: np.zeros(0, np.int32))
    log_probs: LogProbs = field(default_factory=lambda: np.zeros(0, np.float32))
    spans: tuple[WeightSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn that has ended, with all its tokens; a tool call has none."""

    event: TurnRecorded
    tokens: Tokens
    log_probs: LogProbs

    def result(self) -> Any:
        """The tool's result. Raises ToolFailed with the error that it raised."""
        if self.event.error:
            raise ToolFailed(self.event.error)
        return self.event.result


@dataclass(frozen=True, slots=True)
class InFlight:
    """A turn that had begun when its engine was lost. draft: the tokens that it had generated."""

    index: int
    draft: Draft
    call: ToolCall | None = None


class TurnLog:
    """The fold of a sample's turn events. Each turn is the answer to one request, which has to be equal to the first.

    generated: tokens in the log, of all turns. next_index: of the next new turn.
    """

    def __init__(self, sample: str, fetch: Fetch) -> None:
        self._sample, self._fetch = sample, fetch
        self._begun: dict[int, TurnBegun] = {}
        self._drafts: dict[int, Draft] = {}
        self._ended: dict[int, Ended] = {}
        self.generated = self.next_index = 0

    def apply(self, event: object) -> None:
        """Fold one event in; events about other things are ignored."""
        if isinstance(event, TurnBegun):
            self._begun[event.index] = event
            self.next_index = max(self.next_index, event.index + 1)
        elif isinstance(event, RolloutProgressed) and event.turn is not None:
            self._progress(event, event.turn)
        elif isinstance(event, TurnRecorded):
            self._end(event)
            self.next_index = max(self.next_index, event.index + 1)

    def _progress(self, event: RolloutProgressed, turn: int) -> None:
        draft = self._drafts.setdefault(turn, Draft())
        self._check_start(turn, event.start, draft)
        draft.tokens = np.concatenate([draft.tokens, self._fetch(event.tokens)])
        draft.log_probs = np.concatenate([draft.log_probs, self._fetch(event.log_probs)])
        draft.spans = merge_spans(draft.spans, event.spans)
        self.generated += event.tokens.n

    def _end(self, event: TurnRecorded) -> None:
        self._forget_begun(event.asked)
        draft = self._drafts.pop(event.index, Draft())
        self._check_start(event.index, event.start, draft)
        tokens = np.concatenate([draft.tokens, self._fetch(event.tokens)])
        log_probs = np.concatenate([draft.log_probs, self._fetch(event.log_probs)])
        self._ended[event.index] = Ended(event, tokens, log_probs)
        self.generated += event.tokens.n

    def _forget_begun(self, asked: str) -> None:
        """A turn that several lost engines began is one turn."""
        self._begun = {index: event for index, event in self._begun.items() if event.asked != asked}

    def _check_start(self, turn: int, start: int, draft: Draft) -> None:
        if start != len(draft.tokens):
            raise StorageError(
                f"rollout {self._sample}: tokens of turn {turn} start at {start}, but the log holds "
                f"{len(draft.tokens)} before them"
            )

    def claim(self, asked: str, what: str) -> Ended | InFlight | None:
        """The recorded turn of the same request, or None where this one is new.

        asked: digest of the request; what: the request in words. Raises GenerateDiffers where the log holds another
        request at this point; turns that overlapped may come in another order.
        """
        for index, ended in self._ended.items():
            if ended.event.asked == asked:
                return self._ended.pop(index)
        if begun := [event for event in self._begun.values() if event.asked == asked]:
            self._forget_begun(asked)
            return InFlight(begun[-1].index, self._drafts.pop(begun[-1].index, Draft()), begun[-1].call)
        first = next((turn for turn in self._unclaimed() if not turn.overlapping), None)
        if first is not None:
            raise GenerateDiffers(
                f"rollout {self._sample}: run again after a crash, its generate function asks for {what} where the log "
                f"has turn {first.index}, {_described(first)}: it must be deterministic (no clock, no randomness; "
                "tools through session.call)"
            )
        return None

    def check_all_claimed(self) -> None:
        """Raises GenerateDiffers where the function has ended without asking for a turn that the log holds."""
        if unclaimed := self._unclaimed():
            raise GenerateDiffers(
                f"rollout {self._sample}: run again after a crash, its generate function ended without asking for turn "
                f"{unclaimed[0].index}, {_described(unclaimed[0])}, which the log holds"
            )

    def _unclaimed(self) -> list[TurnBegun | TurnRecorded]:
        events: list[TurnBegun | TurnRecorded] = [*self._begun.values()]
        events += [ended.event for ended in self._ended.values()]
        return sorted(events, key=lambda event: event.index)


def _described(event: TurnBegun | TurnRecorded) -> str:
    if event.role is TurnRole.TOOL and event.call is not None:
        return described(event.call)
    return "a generation"


def described(call: ToolCall) -> str:
    """A call in a message, with as much of its arguments as fits."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({arguments if len(arguments) <= 120 else arguments[:117] + '...'})"


@dataclass(frozen=True, slots=True)
class Calling:
    """A tool call whose beginning is in the log."""

    index: int
    asked: str
    call: ToolCall


class Journal:
    """Makes the turns of one rollout, on the worker's event loop.

    turns: the generations so far, with their prompts, in the order they ended. failure: the first error that the
    function may not handle; every later call raises it again, whatever the function does with it.
    """

    def __init__(self, rollout: Rollout, turn_log: TurnLog, context: RolloutContext) -> None:
        self._request, self._engine_id = rollout.request, rollout.engine
        self._turn_log, self._context = turn_log, context
        self._asked: Counter[str] = Counter()
        self._overlapped: set[int] = set()
        self._open: set[int] = set()
        self._append_lock = asyncio.Lock()
        self.turns: list[tuple[Tokens, Ended]] = []
        self.failure: BaseException | None = None

    async def generate(self, prompt: Tokens, sampling: Sampling, seed: int | None) -> Ended:
        """One generation, from the log or live. seed: default, one that depends on the sample and the prompt."""
        with self._keeping_failure():
            self._check()
            content = hashlib.sha256(np.ascontiguousarray(prompt, "<i4").tobytes())
            content.update(_canonical.encode((sampling, seed)))
            asked, occurrence = self._name(content)
            known = self._turn_log.claim(asked, "a generation")
            if not isinstance(known, Ended):
                known = known or self._fresh()
                seed = _seed(self._request.seed, occurrence) if seed is None else seed
                known = await self._generate(prompt, sampling, seed, asked, known)
            self.turns.append((prompt, known))
            return known

    async def begin_call(self, call: ToolCall) -> Ended | Calling:
        """The result in the log, or permission to call the tool now: `end_call` has to follow.

        Raises ToolInterrupted where the call was in flight when its engine was lost, and may not be repeated.
        """
        with self._keeping_failure():
            self._check()
            asked, _ = self._name(hashlib.sha256(_canonical.encode((call.name, call.arguments))))
            known = self._turn_log.claim(asked, described(call))
            if isinstance(known, Ended):
                return known
            if known is not None and not (known.call is not None and known.call.may_repeat and call.may_repeat):
                raise ToolInterrupted(
                    f"{described(call)} of rollout {self._request.sample} was in flight when its engine was lost, and "
                    "may have had its effect: pass may_repeat=True to session.call where that does no harm"
                )
            calling = Calling(self._fresh().index, asked, call)
            await self._append([self._begun(calling.index, TurnRole.TOOL, asked, call)])
            self._begin(calling.index)
            return calling

    async def end_call(self, calling: Calling, result: Any, error: str, seconds: float) -> Ended:
        """Append a tool's result."""
        with self._keeping_failure():
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
            await self._append([event])
            return Ended(event, Draft().tokens, Draft().log_probs)

    def close(self) -> None:
        """Refuse further turns: tasks that the function left running end at their next call."""
        self.failure = self.failure or PlugPointError(
            f"the generate function of rollout {self._request.sample} has ended; its tasks must end with it"
        )

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._context.is_suspended():
            raise Suspended(f"rollout {self._request.sample} is suspended")

    @contextlib.contextmanager
    def _keeping_failure(self) -> Iterator[None]:
        try:
            yield
        except (Exception, Suspended) as error:
            self.failure = self.failure or error
            raise

    def _name(self, content: Any) -> tuple[str, int]:
        """A digest of the request, and how often an equal one was made before."""
        digest = content.hexdigest()
        occurrence = self._asked[digest]
        self._asked[digest] += 1
        return hashlib.sha256(f"{digest}:{occurrence}".encode()).hexdigest(), occurrence

    def _fresh(self) -> InFlight:
        index = self._turn_log.next_index
        self._turn_log.next_index += 1
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

    async def _append(self, events: Sequence[Event]) -> None:
        async with self._append_lock:  # concurrent turns share one fence
            await self._context.append(events)

    async def _generate(self, prompt: Tokens, sampling: Sampling, seed: int, asked: str, known: InFlight) -> Ended:
        begun = time.perf_counter()
        self._begin(known.index)
        draft, request = known.draft, self._request
        before = Trajectory(
            request.sample, request.prompt, tokens=draft.tokens, log_probs=draft.log_probs, spans=draft.spans
        )
        turn = Rollout(request, before, self._engine_id)
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
        await self._append([event])
        self._turn_log.generated += event.tokens.n
        return Ended(
            event,
            np.concatenate([turn.known.tokens, unpack(done.tokens)]),
            np.concatenate([turn.known.log_probs, unpack(done.log_probs)]),
        )

    async def _stream(
        self, turn: Rollout, index: int, asked: str, prompt: Tokens, sampling: Sampling, seed: int
    ) -> Delta:
        """The last delta of a generation. Its chunks are appended on the way, the first with the turn's beginning."""
        has_begun = turn.known.length > 0

        async def append(chunk: RolloutProgressed) -> int:
            nonlocal has_begun
            beginning = [] if has_begun else [self._begun(index, TurnRole.ASSISTANT, asked)]
            await self._append([*beginning, msgspec.structs.replace(chunk, turn=index)])
            has_begun = True
            self._turn_log.generated += chunk.tokens.n
            return 0  # the fence is over more than the turn

        request = GenerateRequest(self._context.rid, prompt, sampling, seed, turn.known.tokens)
        last = await stream(self._context, request, turn, append)
        if last is None:
            raise Suspended(f"rollout {self._request.sample} is suspended in turn {index}")
        return last

    def _continues(self, prompt: Tokens) -> tuple[int | None, int]:
        """(the turn that this prompt continues, how many tokens of the prompt that turn covers)."""
        for before, ended in reversed(self.turns):
            whole = np.concatenate([before, ended.tokens])
            if len(whole) <= len(prompt) and np.array_equal(prompt[: len(whole)], whole):
                return ended.event.index, len(whole)
        return None, 0


def _seed(seed: int, occurrence: int) -> int:
    """The sample's own seed, or one of 31 bits for the n-th request of the same prompt."""
    if not occurrence:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}:{occurrence}".encode(), digest_size=4).digest()) & 0x7FFFFFFF
