"""The turns of one rollout: `TurnLog` folds the recorded ones, `Journal` makes new ones and appends each when it ends.

A generate function that is run again after a crash is answered from the log until the log ends.
"""

import asyncio
import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from schemas.arrays import EMPTY_TOKENS, pack_tokens, unpack
from schemas.doc import doc
from schemas.errors import GenerateDiffers, PlugPointError, ToolFailed, ToolInterrupted
from schemas.event import Event, Purpose
from schemas.rollouts import RolloutProgressed, RoutedExperts, Sampling, StopReason
from schemas.turns import ToolCall, TurnBegun, TurnRecorded, TurnRole
from serve_apps.engines.engine import GenerateRequest, LogProbs, Tokens
from serve_apps.rollouts.rollout import Rollout, RolloutContext, Suspended, stream
from slime_events.core.tokens.trajectory import Fetch, Trajectory

_canonical = msgspec.msgpack.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """A turn that has ended, with all its tokens. A tool call has no tokens."""

    event: TurnRecorded
    tokens: Tokens
    log_probs: LogProbs

    def result(self) -> Any:  # a JSON value
        """Return the tool's result. Raises ToolFailed if the tool raised."""
        if self.event.error:
            raise ToolFailed(self.event.error)
        return self.event.result


@dataclass(frozen=True, slots=True)
class InFlight:
    """A turn that has begun, here or on an engine that was lost."""

    index: int
    digest: Annotated[str, doc("Digest of its request.")]
    draft: Annotated[Trajectory, doc("Its tokens so far.")]
    call: ToolCall | None = None


class TurnLog:
    """The fold of a sample's turn events. A repeated request must equal the recorded one.

    `generated` counts the tokens of all turns in the log. `next_index` is the index of the next new turn.
    """

    def __init__(self, sample: str, fetch: Fetch) -> None:
        self._sample, self._fetch = sample, fetch
        self._begun: dict[int, TurnBegun] = {}
        self._drafts: dict[int, Trajectory] = {}
        self._ended: dict[int, EndedTurn] = {}
        self.generated = self.next_index = 0

    def apply(self, event: object) -> None:
        """Fold one event in. Events about other things are ignored."""
        if isinstance(event, RolloutProgressed) and event.turn is not None:
            self._drafts.setdefault(event.turn, self._new_draft(event.turn)).progress(event, self._fetch)
            self.generated += event.tokens.n
        elif isinstance(event, TurnBegun):
            self._begun[event.index] = event
            self.next_index = max(self.next_index, event.index + 1)
        elif isinstance(event, TurnRecorded):
            self._forget_begun(event.asked)
            whole = self._drafts.pop(event.index, self._new_draft(event.index))
            whole.join(event.start, event.tokens, event.log_probs, self._fetch)
            self._ended[event.index] = EndedTurn(event, whole.tokens, whole.log_probs)
            self.generated += event.tokens.n
            self.next_index = max(self.next_index, event.index + 1)

    def new_turn(self, digest: str, call: ToolCall | None = None) -> InFlight:
        """Return the next turn, without tokens."""
        index = self.next_index
        self.next_index += 1
        return InFlight(index, digest, self._new_draft(index), call)

    def _new_draft(self, turn: int) -> Trajectory:
        return Trajectory(f"{self._sample}, turn {turn}", EMPTY_TOKENS)

    def _forget_begun(self, digest: str) -> None:
        """Forget the beginnings of a request: a turn that several lost engines began is one turn."""
        self._begun = {index: event for index, event in self._begun.items() if event.asked != digest}

    def claim(self, digest: str, call: ToolCall | None = None) -> EndedTurn | InFlight | None:
        """Return the recorded turn of the same request; None for a new request.

        `digest` is the request's. `call` is the tool call, or None for a generation. Raises GenerateDiffers if the log
        holds another request at this point. Turns that overlapped may come in any order.
        """
        for index, ended in self._ended.items():
            if ended.event.asked == digest:
                return self._ended.pop(index)
        if begun := [event for event in self._begun.values() if event.asked == digest]:
            self._forget_begun(digest)
            index = begun[-1].index
            return InFlight(index, digest, self._drafts.pop(index, self._new_draft(index)), begun[-1].call)
        first = next((turn for turn in self._unclaimed() if not turn.overlapping), None)
        if first is not None:
            raise GenerateDiffers(
                f"rollout {self._sample}: run again after a crash, its generate function requests {described(call)}, "
                f"but the log has turn {first.index}, {described(first.call)}: it must be deterministic (no clock, "
                "no randomness; tools through session.call)"
            )
        return None

    def check_all_claimed(self) -> None:
        """Raise GenerateDiffers if the function ended without requesting a turn that the log holds."""
        if unclaimed := self._unclaimed():
            raise GenerateDiffers(
                f"rollout {self._sample}: run again after a crash, its generate function ended without requesting turn "
                f"{unclaimed[0].index}, {described(unclaimed[0].call)}, which the log holds"
            )

    def _unclaimed(self) -> list[TurnBegun | TurnRecorded]:
        ended = (turn.event for turn in self._ended.values())
        return sorted([*self._begun.values(), *ended], key=lambda event: event.index)


def described(call: ToolCall | None) -> str:
    """Return a turn as text for a message: a tool call with as many arguments as fit, or "a generation"."""
    if call is None:
        return "a generation"
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({arguments if len(arguments) <= 120 else arguments[:117] + '...'})"


class Journal:
    """Makes the turns of one rollout, on the worker's event loop.

    `turns` are the generations so far with their prompts, in the order in which they ended. `failure` is the first
    error that the function may not handle: every later call raises it again, even if the function catches it.
    """

    def __init__(self, rollout: Rollout, turn_log: TurnLog, context: RolloutContext) -> None:
        self._request, self._engine_id = rollout.request, rollout.engine
        self._turn_log, self._context = turn_log, context
        self._occurrences: Counter[str] = Counter()
        self._open: dict[int, bool] = {}
        self._append_lock = asyncio.Lock()
        self.turns: list[tuple[Tokens, EndedTurn]] = []
        self.experts: dict[int, RoutedExperts] = {}
        self.failure: BaseException | None = None

    async def generate(
        self, prompt: Tokens, sampling: Sampling, seed: int | None, payload: Mapping[str, Any] | None = None
    ) -> EndedTurn:
        """Return one generation, from the log or from the engine.

        The default `seed` depends on the sample and the prompt. For `payload` see `GenerateRequest`.
        """
        with self._keeping_failure():
            self._check()
            content = hashlib.sha256(np.ascontiguousarray(prompt, "<i4").tobytes())
            content.update(_canonical.encode((sampling, seed, payload) if payload else (sampling, seed)))
            digest, occurrence = self._name(content)
            turn = self._turn_log.claim(digest) or self._turn_log.new_turn(digest)
            if isinstance(turn, InFlight):
                seed = _seed(self._request.seed, occurrence) if seed is None else seed
                turn = await self._generate(prompt, sampling, seed, turn, dict(payload or {}))
            self.turns.append((prompt, turn))
            return turn

    async def begin_call(self, call: ToolCall) -> EndedTurn | InFlight:
        """Return the recorded result, or a turn that permits calling the tool now. `end_call` must follow.

        Raises ToolInterrupted if the call was in flight when its engine was lost, and may not be repeated.
        """
        with self._keeping_failure():
            self._check()
            digest, _ = self._name(hashlib.sha256(_canonical.encode((call.name, call.arguments))))
            recorded = self._turn_log.claim(digest, call)
            if isinstance(recorded, EndedTurn):
                return recorded
            if recorded is not None and not (
                recorded.call is not None and recorded.call.may_repeat and call.may_repeat
            ):
                raise ToolInterrupted(
                    f"{described(call)} of rollout {self._request.sample} was in flight when its engine was lost, and "
                    "may have had its effect: if a repetition is harmless, pass may_repeat=True to session.call"
                )
            turn = self._turn_log.new_turn(digest, call)
            await self._append([self._begun(turn, TurnRole.TOOL)])
            self._begin(turn.index)
            return turn

    async def end_call(self, turn: InFlight, result: Any, error: str, seconds: float) -> EndedTurn:
        """Append a tool's result."""
        with self._keeping_failure():
            event = TurnRecorded(
                sample=self._request.sample,
                index=turn.index,
                role=TurnRole.TOOL,
                asked=turn.digest,
                engine=self._engine_id,
                call=turn.call,
                result=result,
                error=error,
                overlapping=self._open.pop(turn.index),
                seconds=seconds,
            )
            await self._append([event])
            return EndedTurn(event, turn.draft.tokens, turn.draft.log_probs)

    def close(self) -> None:
        """Refuse further turns. Tasks that the function left running end at their next call."""
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
        except (Exception, Suspended) as error:  # every later call raises it again
            self.failure = self.failure or error
            raise

    def _name(self, content: "hashlib._Hash") -> tuple[str, int]:
        """Return a digest of the request, and how many equal requests came before."""
        digest = content.hexdigest()
        occurrence = self._occurrences[digest]
        self._occurrences[digest] += 1
        return hashlib.sha256(f"{digest}:{occurrence}".encode()).hexdigest(), occurrence

    def _begin(self, index: int) -> None:
        """Open a turn. If several are open, mark each as overlapping."""
        self._open[index] = False
        if len(self._open) > 1:
            self._open = dict.fromkeys(self._open, True)

    def _begun(self, turn: InFlight, role: TurnRole) -> TurnBegun:
        return TurnBegun(
            sample=self._request.sample,
            index=turn.index,
            role=role,
            asked=turn.digest,
            engine=self._engine_id,
            call=turn.call,
            overlapping=len(self._open.keys() - {turn.index}) > 0,
        )

    async def _append(self, events: Sequence[Event]) -> None:
        async with self._append_lock:  # concurrent turns share one fence
            await self._context.append(events)

    async def _generate(
        self, prompt: Tokens, sampling: Sampling, seed: int, turn: InFlight, payload: dict[str, Any]
    ) -> EndedTurn:
        begun, has_begun = time.perf_counter(), turn.draft.length > 0
        trains = self._request.purpose is Purpose.TRAIN
        rollout = Rollout(self._request, turn.draft, self._engine_id)

        async def append(chunk: RolloutProgressed) -> int:
            """Append a chunk, together with the turn's beginning if it is the first."""
            nonlocal has_begun
            beginning = [] if has_begun else [self._begun(turn, TurnRole.ASSISTANT)]
            await self._append([*beginning, msgspec.structs.replace(chunk, turn=turn.index)])
            has_begun = True
            self._turn_log.generated += chunk.tokens.n
            return 0  # unused: the fence covers more than the turn

        self._begin(turn.index)
        try:
            request = GenerateRequest(
                self._context.rid, prompt, sampling, seed, turn.draft.tokens, payload, routes=trains
            )
            last = await stream(self._context, request, rollout, append)
        finally:
            overlapping = self._open.pop(turn.index)
        if last is None:
            raise Suspended(f"rollout {self._request.sample} is suspended in turn {turn.index}")
        done = rollout.end(last.finish or StopReason.STOP, last.text or "")
        extends, shared = self._continues(prompt)
        if last.experts is not None:
            if extends is not None:
                self.experts.pop(extends, None)  # these are among the new ones
            self.experts[turn.index] = last.experts
        event = TurnRecorded(
            sample=done.sample,
            index=turn.index,
            role=TurnRole.ASSISTANT,
            asked=turn.digest,
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
            payload=payload,
            meta=last.meta,
            overlapping=overlapping,
            seconds=time.perf_counter() - begun,
        )
        await self._append([event])
        self._turn_log.generated += event.tokens.n
        turn.draft.join(done.start, done.tokens, done.log_probs, unpack)
        return EndedTurn(event, turn.draft.tokens, turn.draft.log_probs)

    def _continues(self, prompt: Tokens) -> tuple[int | None, int]:
        """Return the index of the turn that this prompt continues, and how many of its tokens that turn covers."""
        for before, ended in reversed(self.turns):
            whole = np.concatenate([before, ended.tokens])
            if len(whole) <= len(prompt) and np.array_equal(prompt[: len(whole)], whole):
                return ended.event.index, len(whole)
        return None, 0


def _seed(seed: int, occurrence: int) -> int:
    """Return the sample's own seed, or a 31-bit seed for the n-th request of the same prompt."""
    if not occurrence:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}:{occurrence}".encode(), digest_size=4).digest()) & 0x7FFFFFFF
