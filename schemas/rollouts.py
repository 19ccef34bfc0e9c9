"""A rollout: one sample being made, chunk by chunk."""

import enum
from typing import Any

import msgspec

from schemas.arrays import EMPTY_BYTES, EMPTY_LOG_PROBS, EMPTY_TOKENS, Array
from schemas.event import Event, Purpose
from schemas.ids import returned_id


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How tokens are drawn. max_new_tokens, min_new_tokens count the whole response, resumed parts included.
    more: other parameters of SGLang's, by name.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    skip_special_tokens: bool = False
    more: dict[str, Any] = {}
    min_new_tokens: int = 0


class WeightSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Response tokens [start, end) were made by weight version `version`."""

    start: int
    end: int
    version: int


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """slime's numbers of a sample: `index` among all samples of the run (or of the evaluation) and, in training,
    `group_index` among its groups, in the order they were requested.
    """

    index: int
    group_index: int | None = None


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The recorded rollout that a sample is. run, sample: there. position: of its rollout.completed in that log. spans:
    over the response, with that run's own weight versions.
    """

    run: str
    sample: str
    position: int
    spans: tuple[WeightSpan, ...]


class TurnEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of turn `turn` of the agent's session of `sample`: the first `length` tokens of whatever goes on from it,
    that turn's prompt and what was generated.
    """

    sample: str
    turn: int
    length: int


class StopReason(enum.StrEnum):
    """How a rollout ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class FailureKind(enum.StrEnum):
    """Why a rollout could not be made. aborted: a rollout function wanted no more of a generation. agent: its session
    came to nothing, and another may be opened.
    """

    TOO_LONG = "too_long"
    ENGINE = "engine"
    INVALID = "invalid"
    ABORTED = "aborted"
    AGENT = "agent"


class SuspendReason(enum.StrEnum):
    """Why a rollout is suspended."""

    STEP_BOUNDARY = "step_boundary"
    SHUTDOWN = "shutdown"
    STALE = "stale"


class Timings(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Seconds: waiting from request to first look, generating, and held by weight updates."""

    queued: float = 0.0
    generating: float = 0.0
    updating: float = 0.0


class RolloutRequested(Event, frozen=True, kw_only=True, tag="rollout.requested"):
    """The conductor, once per sample and attempt. Engines compete for it.

    sample: `<group>-s<index>`. prompt: int32 [prompt]. seed: with it and the weights the tokens are determined, where
    the engine is deterministic. min_version: the engine must run at least these weights before it starts. max_version:
    no newer weights may make any token of it; for an evaluation of that version.
    index: within the group. place: within the run; absent in older logs.
    attempt: 0, one more after each failure or suspension; earlier chunks are kept and continued.
    mask_older: tokens of older versions than the one that the rollout ends on get loss mask 0.
    recalls: the recorded sample that answers it, of the run in the prompt's `recalled`; no engine takes such a
    request, and min_version is the version that its group's oldest weights count as.
    function: the rollout function that has answered it, `module:name`; no engine takes such a request either.
    agents: an agent's session makes it, and no engine takes such a request.

    Of purpose `call`: by the process of a rollout function, for one generation, or by the gateway, for a turn of an
    agent; `sample` is `<call group>-s<n>` and has no prompt event. payload: what else the engine is asked for, by the
    names of SGLang's /generate. streams: somebody reads its tokens as they come, so its chunks are short. after: the
    turn whose tokens come before `prompt`, which holds what is new alone then, so a long session takes linear room.
    """

    sample: str
    group: str
    index: int
    prompt: Array
    sampling: Sampling
    seed: int
    min_version: int = 0
    attempt: int = 0
    purpose: Purpose = Purpose.TRAIN
    mask_older: bool = False
    recalls: str = ""
    max_version: int | None = None
    place: Place | None = None
    function: str = ""
    payload: dict[str, Any] = {}
    agents: bool = False
    streams: bool = False
    after: TurnEnd | None = None

    IDENTITY = ("sample", "attempt")

    @property
    def prompt_length(self) -> int:
        """Tokens before the first that is generated."""
        return self.prompt.n + (0 if self.after is None else self.after.length)


class RolloutOffered(Event, frozen=True, kw_only=True, tag="rollout.offered"):
    """The inbox, in the append that submits its group, for a rollout that was made outside. It answers the sample's
    request, once that is there.

    tokens: int32 [response]; log_probs: float32 [response], or empty; loss_mask: int8 [response], absent = all ones.
    version: of this run's weights that it counts as made by. reward: as the sender gave it; None: the run grades.
    """

    sample: str
    group: str
    tokens: Array
    text: str
    version: int
    stop: StopReason
    log_probs: Array = EMPTY_LOG_PROBS
    loss_mask: Array | None = None
    reward: float | None = None
    sender: str = ""
    metadata: dict[str, Any] = {}


class RolloutProgressed(Event, frozen=True, kw_only=True, tag="rollout.progressed"):
    """The engine, every K tokens or T seconds of a running rollout, fenced on all of the sample's rollout events.

    The chunk holds response tokens [start, start + n). tokens: int32 [n]; log_probs: float32 [n], of logits /
    temperature; spans: weight versions over the chunk, in response positions. turn: of a rollout that has turns, the
    one it belongs to; positions are then those of the turn's tokens.

    kept, kept_log_probs: where top-p or top-k leaves a part of the vocabulary, for training: which ids each token was
    drawn from (int8, as in `slime_events/core/kept_tokens.py`), and its log-prob (float32 [n]) among these.
    """

    sample: str
    attempt: int
    start: int
    tokens: Array
    log_probs: Array
    spans: tuple[WeightSpan, ...]
    engine: str
    turn: int | None = None
    kept: Array | None = None
    kept_log_probs: Array | None = None

    def identity(self) -> tuple[str | int, ...]:
        # With its content: chunks of two engines at the same start are one event only where they are equal.
        chunk = (self.sample, self.attempt, self.start, self.tokens.digest(), self.log_probs.digest())
        return chunk if self.turn is None else (*chunk, self.turn)


class RolloutCompleted(Event, frozen=True, kw_only=True, tag="rollout.completed"):
    """The engine, when the rollout has ended by a stop or by its length limit; the conductor, of a recorded one; the
    gateway, of an agent's session that is sealed.

    Holds response tokens [start, length), which no chunk holds yet. spans, text, stop and loss_mask (int8 [length],
    absent = all ones) are of the whole response. digest: sha256 over all response tokens and log-probs, hex.

    A rollout that a generate function or an agent made in turns starts at 0 and is stored whole, whatever its turns
    hold: log-probs are 0 where the mask is, spans cover generated tokens only; trained tokens without a span have no
    log-prob, and the trainer takes its own. prompt: int32, where it is not the request's, and
    prompt_text its text. metadata: what the function added to the sample's. attributes: what else it left on the sample
    that this event and the prompt do not say, JSON values by attribute; graders see it. functions: the generate
    function and the sample hooks that made it, as `module:name`, and the sha256 (hex) of their sources. A function that
    returns several samples completes them in one append, the others first: their ids are `<sample>-1`, `<sample>-2`,
    ..., and `rollout` names the sample that was asked for.

    origin: of a recorded rollout. It is stored whole too, with the digest that it had; spans have the versions that its
    weights count as in this run (`CommonVersion`), engine is the worker that read it.

    place: as requested. kept, kept_log_probs: of `tokens`, as in a chunk.
    calls: of a sample that a rollout function returned, the generations that its tokens are of.
    meta: of a call, what the engine said beside the rest.
    credit: float32 [length], what the advantage of each token is multiplied by; absent = all ones.
    """

    sample: str
    group: str
    attempt: int
    start: int
    length: int
    prompt_length: int
    stop: StopReason
    text: str
    spans: tuple[WeightSpan, ...]
    digest: str
    engine: str
    tokens: Array = EMPTY_TOKENS
    log_probs: Array = EMPTY_LOG_PROBS
    loss_mask: Array | None = None
    timings: Timings = Timings()
    rollout: str = ""
    prompt: Array | None = None
    prompt_text: str = ""
    metadata: dict[str, Any] = {}
    functions: dict[str, str] = {}
    origin: Origin | None = None
    attributes: dict[str, Any] = {}
    place: Place | None = None
    kept: Array | None = None
    kept_log_probs: Array | None = None
    calls: tuple[str, ...] = ()
    meta: dict[str, Any] = {}
    credit: Array | None = None

    MARK = "completed"


class RolloutSuspended(Event, frozen=True, kw_only=True, tag="rollout.suspended"):
    """The engine, when a rollout is suspended: its chunks stay, and it continues from them once it is requested again.

    length: response tokens in the log. reason step_boundary: a `batch.sealed` that suspends came after its request.
    """

    sample: str
    attempt: int
    length: int
    reason: SuspendReason
    engine: str

    def identity(self) -> tuple[str | int, ...]:
        return (self.sample, self.attempt, "suspended", self.length)


class RolloutFailed(Event, frozen=True, kw_only=True, tag="rollout.failed"):
    """The engine, when a rollout cannot be made; the gateway, of a session that came to nothing. message: what
    happened, one sentence.
    """

    sample: str
    group: str
    attempt: int
    kind: FailureKind
    message: str
    engine: str

    def identity(self) -> tuple[str | int, ...]:
        return (self.sample, self.attempt, "failed")


class RolloutReturned(Event, frozen=True, kw_only=True, tag="rollout.returned"):
    """The process of a user's rollout function, once per step and once per evaluation: the function's outcome.

    step: that it was called for, or the version that was evaluated. groups: returned, in order; the step's batch is
    made of them. outcome: the events that say what they are (int8, a zstd frame of MessagePack); they follow in the
    log, and are appended again from here where the process was lost meanwhile. kept: the samples of groups that were
    given back (`data_source.add_samples`), by group, packed as `outcome`. dropped: groups that were drawn, and neither
    returned nor given back. metrics: as the function gave them, those that are numbers. function, digest: `module:name`
    and the sha256 (hex) of its source. seconds: that it took.
    """

    step: int
    function: str
    digest: str
    evaluation: bool = False
    groups: tuple[str, ...] = ()
    outcome: Array = EMPTY_BYTES
    kept: Array = EMPTY_BYTES
    dropped: tuple[str, ...] = ()
    metrics: dict[str, float] = {}
    seconds: float = 0.0

    def entity(self) -> str:
        return returned_id(self.step, evaluation=self.evaluation)

    def identity(self) -> tuple[str | int, ...]:
        # With its content: of two processes that came to different outcomes, the fence lets only one.
        return (self.entity(), self.outcome.digest(), self.kept.digest())
