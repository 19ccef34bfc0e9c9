"""A turn of a rollout: one generation, or one call of a tool. A user's generate function makes it, or an agent."""

import enum
from typing import Any

import msgspec

from schemas.arrays import EMPTY_BYTES, EMPTY_LOG_PROBS, EMPTY_TOKENS, Array
from schemas.event import Event
from schemas.rollouts import StopReason, WeightSpan


class TurnRole(enum.StrEnum):
    """Who speaks in a turn."""

    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool. arguments: JSON values. may_repeat: calling it twice does no harm."""

    name: str
    arguments: dict[str, Any] = {}
    may_repeat: bool = False


class RootReason(enum.StrEnum):
    """Why an agent's turn continues none of its session's: it is the first, it asks what a root asked, its messages
    were shortened or changed, they are another conversation's (another system message, other tools or arguments of the
    template), or the model's template gave other tokens than are recorded.
    """

    FIRST = "first"
    REPEAT = "repeat"
    COMPACTION = "compaction"
    REWRITE = "rewrite"
    SUBAGENT = "subagent"
    DRIFT = "drift"


class SharedBody(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the body of a request has in common with that of turn `turn`: its first `head` bytes, its last `tail`."""

    turn: int
    head: int
    tail: int


class AgentTurn(msgspec.Struct, frozen=True, omit_defaults=True):
    """What makes a turn an agent's. key: by which a retry is known, sha256 hex. dialect: the API it was asked in. call:
    the sample that the generation was requested as.

    messages: digests (16 hex digits each) of the canonical messages that turn `extends` and its answer do not cover,
    each over the one before it too; so equal digests mean equal messages from the first on. answered: the digest with
    the answer. frame: digest of the tools and of what else shapes a prompt. root: why it continues no turn; nearest:
    the one it has most tokens in common with then, drift: the first token that differs from its path. rule: what made
    the prompt's tokens. request: the body as it came (int8), without what it shares with another turn's. client: what
    the agent's HTTP client calls itself (User-Agent, its first 120 characters).
    """

    key: str
    dialect: str
    call: str
    messages: tuple[str, ...] = ()
    answered: str = ""
    frame: str = ""
    root: RootReason | None = None
    nearest: int | None = None
    drift: int | None = None
    rule: str = ""
    request: Array = EMPTY_BYTES
    client: str = ""
    shares: SharedBody | None = None


class TurnBegun(Event, frozen=True, kw_only=True, tag="turn.begun"):
    """The engine, before it calls a tool, and with the first chunk of a generation; the gateway, in the append that
    requests the generation of an agent's turn.

    Fenced on all events of the sample, as every event of such a rollout. Where no `turn.recorded` of the index
    follows, the turn was in flight when its engine was lost: a generation goes on from its chunks, a tool is called
    again only if it may be. asked: sha256 of the question (prompt and sampling, or tool and arguments), hex; of an
    agent, its turn's key. overlapping: another turn of the sample was under way. nonce: random, of an agent's turn.
    Example: index 1, role tool, call {name: calculator, arguments: {expression: 2+3}}.
    """

    sample: str
    index: int
    role: TurnRole
    asked: str
    engine: str
    call: ToolCall | None = None
    overlapping: bool = False
    nonce: str = ""

    def identity(self) -> tuple[str | int, ...]:
        # With the engine: of two that begin the same turn, the fence lets only one. With the nonce: so too of a
        # gateway's own tries, which may be of different requests.
        turn = (self.sample, self.index, self.engine)
        return (*turn, self.nonce) if self.nonce else turn


class TurnRecorded(Event, frozen=True, kw_only=True, tag="turn.recorded"):
    """The engine, when a turn has ended. A generate function that is run again is answered with it. The gateway, before
    an agent is told that its answer has ended; one that asks again is answered with it.

    index: counts the sample's turns in the order they were asked for. asked: as in `turn.begun`. seconds: it took.

    Of the assistant: its prompt is that of turn `extends` with that turn's tokens, then `observed` (int32, what a tool
    or the environment said, loss mask 0); where it extends none, `observed` is the whole prompt. Then come the
    generated tokens [0, length), loss mask 1: those from `start` on in `tokens` (int32) and `log_probs` (float32, of
    logits / temperature), those before in the turn's chunks. spans: weight versions over all of them. text: of them.

    payload: what else the engine was asked for, by the names of SGLang's /generate. meta: what it said beside the rest,
    if it was asked for more, or ended the turn by a reason that is not known here (stop is `stop` then).

    Of a tool: call, and either result (a JSON value) or error (what it raised; empty where it did not).

    overlapping: another turn of the sample was under way at the same time. agent: of an agent's turn. All its tokens
    stand here then, and engine is the one that ended the generation; the indexes go on over the sample's attempts.
    Example: index 1, role tool, call {name: calculator, arguments: {expression: 2+3}}, result 5, seconds 0.02.
    """

    sample: str
    index: int
    role: TurnRole
    asked: str
    engine: str
    extends: int | None = None
    observed: Array = EMPTY_TOKENS
    start: int = 0
    length: int = 0
    tokens: Array = EMPTY_TOKENS
    log_probs: Array = EMPTY_LOG_PROBS
    spans: tuple[WeightSpan, ...] = ()
    stop: StopReason | None = None
    text: str = ""
    payload: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    call: ToolCall | None = None
    result: Any = None
    error: str = ""
    overlapping: bool = False
    seconds: float = 0.0
    agent: AgentTurn | None = None

    IDENTITY = ("sample", "index", "engine")
