"""`Calls`: the generations that a rollout function requests (`rollouts/calls.py`), each named by its request.

A function that is called again after a crash gets the answers that are in the log.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec

from schemas.arrays import EMPTY_TOKENS, pack_tokens
from schemas.doc import doc
from schemas.event import Purpose
from schemas.ids import call_group_id, sample_id, sample_seed
from schemas.rollouts import RolloutCompleted, RolloutRequested, Sampling, StopReason, WeightSpan
from schemas.turns import ToolCall, TurnRecorded, TurnRole
from serve_apps.engines.engine import Tokens
from serve_apps.rollouts.calls import OpenCalls
from serve_apps.rollouts.generate.journal import EndedTurn, InFlight
from serve_apps.rollouts.generate.session import Session
from serve_apps.rollouts.rollout_function.recorded_turns import MadeTurn, MadeTurns
from slime_events.core.run.participant import Participant
from slime_events.core.tokens.trajectory import Fetch, Trajectory
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.tokenizer import Tokenizer
from storage.group_commit import GroupCommit
from storage.log import Append, Recorded

_canonical = msgspec.msgpack.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class CallContext:
    """Objects that all calls of a run share."""

    worker: Participant
    commit: GroupCommit
    fetch: Fetch
    seed: Annotated[int, doc("The run's seed.")]
    attempts: Annotated[int, doc("Maximum attempts of one generation.")]
    turns: Annotated[MadeTurns, doc("Where generations are added.")]
    decode: Annotated[Callable[[list[int]], str], doc("Token ids to text.")]


class Calls:
    """The generations of one call of the function, for a `Session`.

    `versions` returns the oldest and newest weight version that may answer a request made now. With `looks_up` the log
    may have answers from before this process.
    """

    def __init__(
        self,
        context: CallContext,
        step: int,
        versions: Callable[[], tuple[int, int | None]],
        *,
        evaluation: bool = False,
        looks_up: bool = False,
    ) -> None:
        self._context, self._versions, self._looks_up = context, versions, looks_up
        self._group = partial(call_group_id, step, evaluation=evaluation)
        self._step = step
        self._counts: Counter[str] = Counter()
        self._open = OpenCalls(context.worker, self._append, context.fetch, context.attempts, versions)
        self._turns = 0
        self.failure: BaseException | None = None  # stays None: a failed generation raises by itself
        self.has_returned = self.aborted = False
        """Whether the function has returned; whether it has aborted its generations."""
        self.spans: list[WeightSpan] = []
        """Spans of all its generations."""

    @property
    def is_over(self) -> bool:
        """Whether the function has returned, and its threads have no generation in progress."""
        return self.has_returned and not self._open.by_sample

    async def generate(
        self, prompt: Tokens, sampling: Sampling, seed: int | None, payload: dict[str, Any]
    ) -> EndedTurn:
        """Return one generation. Raises EngineError if no engine could make it."""
        if self.aborted:
            return self._ended(None, Trajectory("", EMPTY_TOKENS))
        question = (prompt.tobytes(), msgspec.to_builtins(sampling), seed, payload)
        group = self._group(hashlib.sha256(_canonical.encode(question)).hexdigest())
        index = self._counts[group]
        sample = sample_id(group, index)
        self._counts[group] += 1
        oldest, newest = self._versions()
        request = RolloutRequested(
            sample=sample,
            group=group,
            index=index,
            prompt=pack_tokens(prompt),
            sampling=sampling,
            seed=sample_seed(self._context.seed, sample) if seed is None else seed,
            min_version=oldest,
            max_version=newest,
            purpose=Purpose.CALL,
            payload=payload,
        )
        call = self._open.open(request)
        try:
            if self._looks_up:
                await self._open.read(sample)
            if not call.requested:
                await self._open.request(request)
            ended = self._ended(await call.ended, call.trajectory)
        finally:
            self._open.close(sample)
        self._turns += 1
        self.spans += ended.event.spans
        self._context.turns.add(MadeTurn(prompt, ended, sample), self._step)
        return ended

    async def abort(self) -> None:
        """End the generations in progress. They return the tokens in the log, with finish reason `abort`."""
        self.aborted = True
        for call in list(self._open.by_sample.values()):
            await self._open.abort(call, "the rollout function aborted it")

    def apply(self, recorded: Recorded) -> None:
        """Take in the next event of the log."""
        self._open.apply(recorded)

    async def _append(self, append: Append) -> None:
        await self._context.commit.append([append])

    def _ended(self, completed: RolloutCompleted | None, trajectory: Trajectory) -> EndedTurn:
        """Return the turn of a generation. `completed` is None for an aborted one."""
        event = TurnRecorded(
            sample=trajectory.sample,
            index=self._turns,
            role=TurnRole.ASSISTANT,
            asked="",
            engine="" if completed is None else completed.engine,
            length=trajectory.length,
            spans=trajectory.spans,
            stop=StopReason.ABORT if completed is None else completed.stop,
            text=self._context.decode(trajectory.tokens.tolist()) if completed is None else completed.text,
            meta={} if completed is None else completed.meta,
        )
        return EndedTurn(event, trajectory.tokens, trajectory.log_probs)

    async def begin_call(self, call: ToolCall) -> InFlight:
        """Let the tool run in the function's process. Its call is not recorded, only the function's result."""
        return InFlight(self._turns, "", Trajectory("tool", EMPTY_TOKENS), call)

    async def end_call(self, turn: InFlight, result: object, error: str, seconds: float) -> EndedTurn:
        """Return the tool's answer."""
        event = TurnRecorded(
            sample="tool", index=turn.index, role=TurnRole.TOOL, asked="", engine="", result=result, error=error
        )
        return EndedTurn(event, turn.draft.tokens, turn.draft.log_probs)


class FunctionSession(Session):
    """The session of one call of a rollout function."""

    of_function = True

    def __init__(self, calls: Calls, tokenizer: Tokenizer, sampling: Sampling, args: ArgsView) -> None:
        super().__init__(calls, tokenizer, sampling, args)
        self._calls = calls

    async def abort(self) -> None:
        """Abort the generations: see `Calls.abort`."""
        self.aborted = True
        await self._on_worker_loop(self._calls.abort())

    def reset(self) -> None:
        """Allow generations again after `abort`."""
        self.aborted = self._calls.aborted = False
