"""A turn of a rollout: a generation or a tool call, made by a user's generate function or an agent."""

import enum
from typing import Annotated, Any

import msgspec

from schemas.arrays import EMPTY_BYTES, EMPTY_LOG_PROBS, EMPTY_TOKENS, Array
from schemas.doc import doc
from schemas.event import Event
from schemas.rollouts import StopReason, WeightSpan


class TurnRole(enum.StrEnum):
    """Author of a turn."""

    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool."""

    name: Annotated[str, doc("Name of the tool.")]
    arguments: Annotated[dict[str, Any], doc("JSON values by parameter.")] = {}
    may_repeat: Annotated[bool, doc("Calling the tool twice does no harm.")] = False


class RootReason(enum.StrEnum):
    """Why an agent's turn extends no other turn of its session.

    `first`: it is the session's first. `repeat`: it repeats the request of a root. `compaction`, `rewrite`: its
    messages were shortened or changed. `subagent`: it belongs to another conversation, with other tools, template
    arguments or system message. `drift`: the model's template gave other tokens than the recorded ones.
    """

    FIRST = "first"
    REPEAT = "repeat"
    COMPACTION = "compaction"
    REWRITE = "rewrite"
    SUBAGENT = "subagent"
    DRIFT = "drift"


class SharedBody(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Parts of a request's body that are equal to those of an earlier turn's body."""

    turn: Annotated[int, doc("Index of the earlier turn.")]
    head: Annotated[int, doc("Equal bytes at the beginning.")]
    tail: Annotated[int, doc("Equal bytes at the end.")]


class AgentTurn(msgspec.Struct, frozen=True, omit_defaults=True):
    """Additional data for an agent's turn."""

    key: Annotated[str, doc("sha256 (hex) that identifies retries of the request.")]
    dialect: Annotated[str, doc("API of the request.")]
    call: Annotated[str, doc("Sample under which the generation was requested.")]
    messages: Annotated[
        tuple[str, ...],
        doc(
            "Digests (16 hex digits each) of the canonical messages that turn `extends` and its answer do not cover. "
            "Each also covers all messages before it."
        ),
    ] = ()
    answered: Annotated[str, doc("Digest of all messages and the answer.")] = ""
    frame: Annotated[
        str, doc("Digest of everything else that shapes the prompt: system messages, tools, template arguments.")
    ] = ""
    root: Annotated[RootReason | None, doc("Why the turn extends no other; None if it extends one.")] = None
    nearest: Annotated[int | None, doc("Turn with the most tokens in common, if the turn is a root.")] = None
    drift: Annotated[int | None, doc("First token that differs from the path of `nearest`.")] = None
    rule: Annotated[str, doc("Rule that produced the prompt's new tokens.")] = ""
    request: Annotated[Array, doc("int8: the request's body, without the parts in `shares`.")] = EMPTY_BYTES
    client: Annotated[str, doc("User-Agent of the HTTP client, at most 120 characters.")] = ""
    shares: Annotated[SharedBody | None, doc("Parts that the body shares with an earlier turn's body.")] = None


class TurnBegun(Event, frozen=True, kw_only=True, tag="turn.begun"):
    """Appended by the engine before a tool call or with the first chunk of a generation, or by the gateway in the
    append that requests the generation for an agent's turn.

    Like every event of such a rollout, it is fenced on all events of the sample. If no `turn.recorded` with this index
    follows, the turn was in flight when its engine was lost: a generation continues from its chunks, and a tool is
    called again only if `may_repeat` is set.
    Example: index 1, role tool, call {name: calculator, arguments: {expression: 2+3}}.
    """

    sample: Annotated[str, doc("Id of the sample.")]
    index: Annotated[int, doc("Index of the turn, in the order of requests.")]
    role: Annotated[TurnRole, doc("Author of the turn.")]
    asked: Annotated[
        str,
        doc("sha256 (hex) of the request: prompt and sampling, or tool and arguments. Agent's turn: the turn's key."),
    ]
    engine: Annotated[str, doc("Worker id of the engine or gateway.")]
    call: Annotated[ToolCall | None, doc("Tool call, if the role is `tool`.")] = None
    overlapping: Annotated[bool, doc("Another turn of the sample was in flight.")] = False
    nonce: Annotated[str, doc("Random text; empty unless the turn is an agent's.")] = ""

    def identity(self) -> tuple[str | int, ...]:
        # `engine` makes two engines that begin the same turn two events; the fence lets only one in. `nonce` does the
        # same for attempts of one gateway, which may be for different requests.
        turn = (self.sample, self.index, self.engine)
        return (*turn, self.nonce) if self.nonce else turn


class TurnRecorded(Event, frozen=True, kw_only=True, tag="turn.recorded"):
    """Appended when a turn has ended: by the engine, or by the gateway before the agent gets the end of its answer.

    A generate function that runs again, or an agent that repeats its request, gets the recorded turn.

    The prompt of an assistant turn is the prompt of turn `extends`, then that turn's tokens, then `observed`. If the
    turn extends none, `observed` is the whole prompt. Then follow the generated tokens [0, length), loss mask 1:
    those before `start` are in the turn's chunks, the others in `tokens`. An agent's turn has all its tokens here, and
    its indexes continue over the sample's attempts.
    Example: index 1, role tool, call {name: calculator, arguments: {expression: 2+3}}, result 5, seconds 0.02.
    """

    sample: Annotated[str, doc("Id of the sample.")]
    index: Annotated[int, doc("Index of the turn, in the order of requests.")]
    role: Annotated[TurnRole, doc("Author of the turn.")]
    asked: Annotated[str, doc("sha256 (hex) of the request, as in `turn.begun`.")]
    engine: Annotated[str, doc("Worker id of the engine that ended the generation, or of the gateway.")]
    extends: Annotated[int | None, doc("Turn whose prompt and tokens begin this prompt; None: a root.")] = None
    observed: Annotated[
        Array, doc("int32: new prompt tokens, such as the output of a tool or the environment; loss mask 0.")
    ] = EMPTY_TOKENS
    start: Annotated[int, doc("Position of the first token in `tokens`.")] = 0
    length: Annotated[int, doc("Generated tokens.")] = 0
    tokens: Annotated[Array, doc("int32 [length - start]: token ids.")] = EMPTY_TOKENS
    log_probs: Annotated[Array, doc("float32 [length - start]: log-probs (nats) of logits / temperature.")] = (
        EMPTY_LOG_PROBS
    )
    spans: Annotated[tuple[WeightSpan, ...], doc("Weight versions over all generated tokens.")] = ()
    stop: Annotated[StopReason | None, doc("Why the generation ended; None for a tool.")] = None
    text: Annotated[str, doc("Text of the generated tokens.")] = ""
    payload: Annotated[dict[str, Any], doc("Other parameters of the request, by the names of SGLang's /generate.")] = {}
    meta: Annotated[
        dict[str, Any],
        doc("Other fields of the engine's answer, if requested; also an unknown stop reason (`stop` is then `stop`)."),
    ] = {}
    call: Annotated[ToolCall | None, doc("Tool call, if the role is `tool`.")] = None
    result: Annotated[Any, doc("JSON value that the tool returned.")] = None
    error: Annotated[str, doc("Error that the tool raised; empty if none.")] = ""
    overlapping: Annotated[bool, doc("Another turn of the sample was in flight.")] = False
    seconds: Annotated[float, doc("Seconds that the turn took.")] = 0.0
    agent: Annotated[AgentTurn | None, doc("Additional data, if the turn is an agent's.")] = None

    IDENTITY = ("sample", "index", "engine")
