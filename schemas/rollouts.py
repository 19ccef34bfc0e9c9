"""A rollout: the generation of one sample, stored chunk by chunk."""

import enum
from typing import Annotated, Any

import msgspec

from schemas.arrays import EMPTY_BYTES, EMPTY_LOG_PROBS, EMPTY_TOKENS, Array
from schemas.doc import doc
from schemas.event import Event, Purpose
from schemas.ids import returned_id


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Sampling parameters of a rollout. Token limits count the whole response, including resumed parts."""

    max_new_tokens: Annotated[int, doc("Most tokens in the response.")]
    temperature: Annotated[float, doc("Sampling temperature; 0 is greedy.")] = 1.0
    top_p: Annotated[float, doc("Nucleus probability.")] = 1.0
    top_k: Annotated[int, doc("Number of candidates; -1 is off.")] = -1
    stop: Annotated[tuple[str, ...], doc("Stop strings.")] = ()
    stop_token_ids: Annotated[tuple[int, ...], doc("Stop token ids.")] = ()
    skip_special_tokens: Annotated[bool, doc("Omit special tokens from the text.")] = False
    more: Annotated[dict[str, Any], doc("Other sampling parameters of SGLang, by name.")] = {}
    min_new_tokens: Annotated[int, doc("Fewest tokens in the response.")] = 0


class WeightSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Response tokens [start, end) that one weight version generated."""

    start: Annotated[int, doc("First token.")]
    end: Annotated[int, doc("Token after the last.")]
    version: Annotated[int, doc("Weight version.")]


def spans_text(spans: tuple[WeightSpan, ...]) -> str:
    """Return the weight versions of a rollout: `v3`, or `v3[0:40] v4[40:52]` if several versions made the tokens."""
    if len(spans) == 1:
        return f"v{spans[0].version}"
    return " ".join(f"v{span.version}[{span.start}:{span.end}]" for span in spans)


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """slime's numbers of a sample, in the order of requests."""

    index: Annotated[int, doc("Index among all samples of the run, or of the evaluation.")]
    group_index: Annotated[int | None, doc("Index of the group among the run's groups; None in evaluations.")] = None


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Recorded rollout that a sample reuses."""

    run: Annotated[str, doc("Run that recorded it.")]
    sample: Annotated[str, doc("Sample in that run.")]
    position: Annotated[int, doc("Position of its `rollout.completed` in that run's log.")]
    spans: Annotated[tuple[WeightSpan, ...], doc("Spans over the response, with weight versions of that run.")]


class TurnEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """End of a turn of an agent's session. A later turn continues from the tokens before it (prompt and response)."""

    sample: Annotated[str, doc("Sample of the session.")]
    turn: Annotated[int, doc("Index of the turn.")]
    length: Annotated[int, doc("Tokens of the turn's prompt and response.")]


class RoutedExperts(msgspec.Struct, frozen=True, gc=False):
    """Experts that an engine's routers chose for the first tokens of prompt and response."""

    ids: Annotated[
        Array,
        doc("uint8, or uint16 beyond 256 experts, [tokens, layers, each], row by row: 0 in layers without experts."),
    ]
    layers: Annotated[int, doc("Layers of the model, also those without experts.")]
    each: Annotated[int, doc("Experts per token and layer.")]

    @property
    def tokens(self) -> int:
        """Tokens from the start of the prompt; the others are unknown, and among them is always the last."""
        return self.ids.n // (self.layers * self.each)


class StopReason(enum.StrEnum):
    """Why a rollout ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class FailureKind(enum.StrEnum):
    """Why a rollout failed.

    `aborted`: a rollout function cancelled the generation. `agent`: the agent's session gave no sample, and another
    session may be opened.
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
    """Durations within a rollout."""

    queued: Annotated[float, doc("Seconds from the request until an engine took it.")] = 0.0
    generating: Annotated[float, doc("Seconds of generation.")] = 0.0
    updating: Annotated[float, doc("Seconds paused by weight updates.")] = 0.0


class Maker(enum.StrEnum):
    """Maker of a requested rollout.

    `engine`: an engine, also with a generate function, and for each call of a client. `function`: the run's rollout
    function. `agent`: an agent's session. `recorded`: another run. `outside`: a producer, which offered the rollout.
    """

    ENGINE = "engine"
    FUNCTION = "function"
    AGENT = "agent"
    RECORDED = "recorded"
    OUTSIDE = "outside"


class RolloutRequested(Event, frozen=True, kw_only=True, tag="rollout.requested"):
    """Appended by the conductor, once per sample and attempt. Engines compete for requests of maker `engine`, and take
    no others.

    Requests of purpose `call` are for one generation: the process of a rollout function appends them, or the gateway
    for a turn of an agent. Their `sample` is `<call group>-s<n>` and has no prompt event.
    """

    sample: Annotated[str, doc("Id of the sample: `<group>-s<index>`.")]
    group: Annotated[str, doc("Group of the sample.")]
    index: Annotated[int, doc("Index within the group.")]
    prompt: Annotated[Array, doc("int32 [prompt]: token ids.")]
    sampling: Annotated[Sampling, doc("Sampling parameters.")]
    seed: Annotated[int, doc("Seed; if the engine is deterministic, seed and weights determine the tokens.")]
    min_version: Annotated[
        int,
        doc(
            "Oldest weights with which the engine may start. Makers `recorded` and `outside`: the version that the "
            "group's oldest weights count as."
        ),
    ] = 0
    attempt: Annotated[
        int, doc("0, and 1 more after each failure or suspension; chunks of earlier attempts are continued.")
    ] = 0
    purpose: Annotated[Purpose, doc("Use of the rollout.")] = Purpose.TRAIN
    mask_older: Annotated[
        bool, doc("Tokens of older versions than the one on which the rollout ends get loss mask 0.")
    ] = False
    recalls: Annotated[
        str,
        doc("Makers `recorded` and `outside`: sample that answers the request, of the run in the prompt's `recalled`."),
    ] = ""
    max_version: Annotated[
        int | None, doc("Newest weights that may generate a token, such as the version that is evaluated.")
    ] = None
    place: Annotated[Place | None, doc("slime's numbers of the sample; absent in older logs.")] = None
    function: Annotated[str, doc("Maker `function`: rollout function that has answered it, `module:name`.")] = ""
    payload: Annotated[dict[str, Any], doc("Purpose `call`: other parameters by the names of SGLang's /generate.")] = {}
    streams: Annotated[bool, doc("Purpose `call`: a client reads the tokens as they arrive, so chunks are short.")] = (
        False
    )
    after: Annotated[
        TurnEnd | None,
        doc(
            "Purpose `call`: turn whose tokens precede `prompt`, which then has the new tokens only. The log of a long "
            "session therefore grows linearly."
        ),
    ] = None
    maker: Annotated[Maker, doc("Maker of the rollout.")] = Maker.ENGINE

    SCHEMA = 2
    IDENTITY = ("sample", "attempt")

    @property
    def prompt_length(self) -> int:
        """Tokens before the first generated token."""
        return self.prompt.n + (0 if self.after is None else self.after.length)


class RolloutOffered(Event, frozen=True, kw_only=True, tag="rollout.offered"):
    """Appended by the inbox for a rollout that was made outside, in the append that submits its group.

    It answers the sample's request as soon as that is in the log.
    """

    sample: Annotated[str, doc("Id of the sample.")]
    group: Annotated[str, doc("Group of the sample.")]
    tokens: Annotated[Array, doc("int32 [response]: token ids.")]
    text: Annotated[str, doc("Text of the response.")]
    version: Annotated[int, doc("Weight version of this run that the rollout counts as.")]
    stop: Annotated[StopReason, doc("Why the rollout ended.")]
    log_probs: Annotated[Array, doc("float32 [response]: log-probs (nats); empty if unknown.")] = EMPTY_LOG_PROBS
    loss_mask: Annotated[Array | None, doc("int8 [response]; None: all ones.")] = None
    reward: Annotated[float | None, doc("The sender's reward; None: the run grades.")] = None
    sender: Annotated[str, doc("Producer that sent the rollout.")] = ""
    metadata: Annotated[dict[str, Any], doc("The sender's metadata, JSON.")] = {}


class RolloutProgressed(Event, frozen=True, kw_only=True, tag="rollout.progressed"):
    """Appended by the engine every K tokens or T seconds of a running rollout, fenced on all the sample's rollout
    events.

    The chunk holds response tokens [start, start + n). If the rollout has turns, positions count the turn's tokens.
    """

    sample: Annotated[str, doc("Id of the sample.")]
    attempt: Annotated[int, doc("Attempt of the sample.")]
    start: Annotated[int, doc("Response position of the first token.")]
    tokens: Annotated[Array, doc("int32 [n]: token ids.")]
    log_probs: Annotated[Array, doc("float32 [n]: log-probs (nats) of logits / temperature.")]
    spans: Annotated[tuple[WeightSpan, ...], doc("Weight versions over the chunk, in response positions.")]
    engine: Annotated[str, doc("Worker id of the engine.")]
    turn: Annotated[int | None, doc("Turn of the chunk, if the rollout has turns.")] = None
    kept: Annotated[
        Array | None,
        doc(
            "int8: ids that top-p or top-k kept for each token, in the format of "
            "`slime_events/core/tokens/kept_tokens.py`; None if the whole vocabulary was kept."
        ),
    ] = None
    kept_log_probs: Annotated[Array | None, doc("float32 [n]: log-probs (nats) among the kept ids.")] = None

    def identity(self) -> tuple[str | int, ...]:
        # The digests make chunks of two engines at the same start one event only if they are equal.
        chunk = (self.sample, self.attempt, self.start, self.tokens.digest(), self.log_probs.digest())
        return chunk if self.turn is None else (*chunk, self.turn)


class RolloutCompleted(Event, frozen=True, kw_only=True, tag="rollout.completed"):
    """Appended when a rollout has ended by a stop or its length limit: by the engine, by the conductor for a recorded
    rollout, or by the gateway for a sealed session of an agent.

    It holds response tokens [start, length), which no chunk holds yet.

    A rollout that a generate function or an agent made in turns starts at 0 and is stored whole, whatever its turns
    hold. Its log-probs are 0 if the mask is 0, and its spans cover generated tokens only. Trained tokens without a span
    have no log-prob, and the trainer uses its own.

    A generate function that returns several samples completes them in one append, the additional samples first. Their
    ids are `<sample>-1`, `<sample>-2`, ...

    A recorded rollout is stored whole too, with its original digest.
    """

    sample: Annotated[str, doc("Id of the sample.")]
    group: Annotated[str, doc("Group of the sample.")]
    attempt: Annotated[int, doc("Attempt of the sample.")]
    start: Annotated[int, doc("Response position of the first token in `tokens`.")]
    length: Annotated[int, doc("Tokens in the response.")]
    prompt_length: Annotated[int, doc("Tokens in the prompt.")]
    stop: Annotated[StopReason, doc("Why the rollout ended.")]
    text: Annotated[str, doc("Text of the whole response.")]
    spans: Annotated[
        tuple[WeightSpan, ...],
        doc(
            "Weight versions over the whole response. If recorded: the versions of this run that its weights count as "
            "(`CommonVersion`)."
        ),
    ]
    digest: Annotated[str, doc("sha256 (hex) over all response tokens and log-probs.")]
    engine: Annotated[str, doc("Worker id of the engine, or of the worker that read a recorded rollout.")]
    tokens: Annotated[Array, doc("int32 [length - start]: token ids.")] = EMPTY_TOKENS
    log_probs: Annotated[Array, doc("float32 [length - start]: log-probs (nats) of logits / temperature.")] = (
        EMPTY_LOG_PROBS
    )
    loss_mask: Annotated[Array | None, doc("int8 [length]; None: all ones.")] = None
    timings: Annotated[Timings, doc("Durations within the rollout.")] = Timings()
    rollout: Annotated[str, doc("Additional sample of a generate function: the sample that was requested.")] = ""
    prompt: Annotated[Array | None, doc("int32 [prompt], if it differs from the requested prompt.")] = None
    prompt_text: Annotated[str, doc("Text of `prompt`.")] = ""
    metadata: Annotated[dict[str, Any], doc("Metadata that the function added to the sample's.")] = {}
    functions: Annotated[
        dict[str, str],
        doc("Generate function and sample hooks that made it: sha256 (hex) of the source by `module:name`."),
    ] = {}
    origin: Annotated[Origin | None, doc("Recorded rollout that the sample reuses.")] = None
    attributes: Annotated[
        dict[str, Any],
        doc("Other attributes that the function set on the sample, JSON values by name; graders see them."),
    ] = {}
    place: Annotated[Place | None, doc("slime's numbers of the sample, as in the request.")] = None
    kept: Annotated[Array | None, doc("Ids kept for `tokens`, as in `rollout.progressed`.")] = None
    kept_log_probs: Annotated[Array | None, doc("float32 [length - start]: log-probs (nats) among the kept ids.")] = (
        None
    )
    calls: Annotated[
        tuple[str, ...], doc("Sample of a rollout function: the generations that its tokens come from.")
    ] = ()
    meta: Annotated[dict[str, Any], doc("Purpose `call`: other fields of the engine's answer.")] = {}
    credit: Annotated[Array | None, doc("float32 [length]: factor on each token's advantage; None: all ones.")] = None
    experts: Annotated[
        RoutedExperts | None,
        doc("Experts of the engine that completed the rollout, which it reports once, at the end; None if unknown."),
    ] = None

    MARK = "completed"


class RolloutSuspended(Event, frozen=True, kw_only=True, tag="rollout.suspended"):
    """Appended by the engine when a rollout is suspended. Its next attempt continues from its chunks."""

    sample: Annotated[str, doc("Id of the sample.")]
    attempt: Annotated[int, doc("Attempt of the sample.")]
    length: Annotated[int, doc("Response tokens in the log.")]
    reason: Annotated[SuspendReason, doc("`step_boundary`: a `batch.sealed` that suspends followed the request.")]
    engine: Annotated[str, doc("Worker id of the engine.")]

    def identity(self) -> tuple[str | int, ...]:
        return (self.sample, self.attempt, "suspended", self.length)


class RolloutFailed(Event, frozen=True, kw_only=True, tag="rollout.failed"):
    """Appended by the engine when a rollout cannot be made, or by the gateway when a session gave no sample."""

    sample: Annotated[str, doc("Id of the sample.")]
    group: Annotated[str, doc("Group of the sample.")]
    attempt: Annotated[int, doc("Attempt of the sample.")]
    kind: Annotated[FailureKind, doc("Kind of failure.")]
    message: Annotated[str, doc("Explanation, one sentence.")]
    engine: Annotated[str, doc("Worker id of the engine or gateway.")]

    def identity(self) -> tuple[str | int, ...]:
        return (self.sample, self.attempt, "failed")


class RolloutReturned(Event, frozen=True, kw_only=True, tag="rollout.returned"):
    """Result of a user's rollout function, appended by its process once per step and once per evaluation.

    The events in `outcome` follow in the log. If the process is lost before it has appended them, they are appended
    from here.
    """

    step: Annotated[int, doc("Step of the call, or the version that was evaluated.")]
    function: Annotated[str, doc("Rollout function, `module:name`.")]
    digest: Annotated[str, doc("sha256 (hex) of the function's source.")]
    evaluation: Annotated[bool, doc("The function was called for an evaluation.")] = False
    groups: Annotated[tuple[str, ...], doc("Returned groups in order; the step's batch consists of them.")] = ()
    outcome: Annotated[Array, doc("int8: events of the returned samples, a zstd frame of MessagePack.")] = EMPTY_BYTES
    kept: Annotated[
        Array, doc("int8: samples returned to the data source (`data_source.add_samples`) by group, as `outcome`.")
    ] = EMPTY_BYTES
    dropped: Annotated[
        tuple[str, ...], doc("Groups that were drawn, and neither returned nor put back into the data source.")
    ] = ()
    metrics: Annotated[dict[str, float], doc("Numeric metrics that the function returned.")] = {}
    seconds: Annotated[float, doc("Seconds that the call took.")] = 0.0

    def entity(self) -> str:
        return returned_id(self.step, evaluation=self.evaluation)

    def identity(self) -> tuple[str | int, ...]:
        # The digests make different results of two processes two events; the fence lets only one in.
        return (self.entity(), self.outcome.digest(), self.kept.digest())
