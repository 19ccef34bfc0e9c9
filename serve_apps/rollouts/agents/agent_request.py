"""`AgentRequest`, `Answer` and `Dialect`: a request of an agent and its answer, independent of the API it uses.

body -> Dialect.read -> AgentRequest -> (a turn) -> Part ... Answer -> Dialect.whole or Dialect.stream -> body
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import msgspec

from schemas.doc import doc
from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.canonical import Conversation


class DialectName(enum.StrEnum):
    """An API that agents use."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GENERATE = "generate"


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One request. The prompt is in exactly one of `messages`, `tokens` and `text`."""

    dialect: DialectName
    model: Annotated[str, doc("name that the client sent; the answer repeats it")]
    messages: Annotated[
        tuple[dict[str, Any], ...],
        doc(
            "canonical chat messages, system first, with OpenAI's keys: role, content, tool_calls, tool_call_id, "
            "reasoning_content, name"
        ),
    ] = ()
    tokens: Annotated[tuple[int, ...] | None, doc("prompt as token ids, for /generate")] = None
    text: Annotated[str | None, doc("prompt as text without a chat template, for /generate")] = None
    tools: Annotated[tuple[dict[str, Any], ...], doc("functions in the form of OpenAI's chat API")] = ()
    tool_choice: Annotated[str, doc("auto, none, required, or the name of a function")] = "auto"
    parallel: Annotated[bool, doc("an answer may have several tool calls")] = True
    sampling: Annotated[Mapping[str, Any], doc("sampling parameters that the request sets, by SGLang's names")] = field(
        default_factory=dict
    )
    template: Annotated[Mapping[str, Any], doc("`chat_template_kwargs`: arguments of the chat template")] = field(
        default_factory=dict
    )
    stream: Annotated[bool, doc("send the answer as server-sent events while it is generated")] = False
    log_probs: Annotated[
        int | None, doc("number of alternatives to report with the log-prob of each token; None: no log-probs")
    ] = None
    skip_special: Annotated[
        bool | None, doc("remove special tokens from the text; None: keep them if a parser needs them")
    ] = None
    trim_stop: Annotated[bool, doc("remove the stop string or stop token that ended the answer")] = True
    body: Annotated[Mapping[str, Any], doc("decoded request, for the fields that an answer repeats")] = field(
        default_factory=dict
    )
    client: Annotated[str, doc("User-Agent of the agent's HTTP client")] = ""


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer's text, with all tokens since the last piece, also those of reasoning and tool calls."""

    text: str
    tokens: Annotated[tuple[int, ...], doc("token ids since the last piece")] = ()
    log_probs: Annotated[tuple[float, ...], doc("log-prob of each of these tokens")] = ()
    pieces: Annotated[tuple[bytes, ...], doc("bytes of each of these tokens; empty without log-probs")] = ()


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's reasoning before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The start of a tool call."""

    index: Annotated[int, doc("index among the turn's tool calls, from 0")]
    id: Annotated[str, doc("id of the call, the same each time the turn is read")]
    name: Annotated[str, doc("name of the tool")]


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments of a tool call, JSON text."""

    index: Annotated[int, doc("index among the turn's tool calls, from 0")]
    text: str


Part = Content | Reasoning | CallBegun | CallArguments


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole answer of a turn."""

    id: Annotated[str, doc("id of the turn; a retry gets the same id")]
    created: Annotated[int, doc("time of the turn's request, seconds of Unix time")]
    message: Annotated[
        dict[str, Any],
        doc("assistant message with OpenAI's keys (content, reasoning_content, tool_calls), as clients send it back"),
    ]
    stop: Annotated[StopReason, doc("reason why generation ended")]
    text: Annotated[str, doc("text of `tokens`")]
    prompt_tokens: int
    tokens: Annotated[tuple[int, ...], doc("generated token ids")]
    log_probs: Annotated[tuple[float, ...], doc("log-prob of each generated token")]
    versions: Annotated[tuple[int, ...], doc("weight versions that generated the tokens, oldest first")] = ()
    matched: Annotated[str | int | None, doc("stop string or token id that ended the answer")] = None
    cached_tokens: Annotated[int, doc("prompt tokens found in the engine's cache")] = 0
    reasoning_tokens: Annotated[int, doc("generated tokens before the content and the tool calls")] = 0
    pieces: Annotated[tuple[bytes, ...], doc("bytes of each generated token; empty without log-probs")] = ()


DONE = b"data: [DONE]\n\n"
"""Last event of the streams of OpenAI's chat API and of SGLang's API."""


def event(value: Mapping[str, object]) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: %b\n\n" % msgspec.json.encode(value)


def named_event(value: Mapping[str, object]) -> bytes:
    """Return a server-sent event whose name is the `type` of its value."""
    return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), msgspec.json.encode(value))


class Encoder(Protocol):
    """Encodes one streamed answer as server-sent events. Call order: begin, part ..., then end or fail."""

    def begin(self) -> bytes: ...

    def part(self, part: Part) -> bytes: ...

    def end(self, answer: Answer) -> bytes:
        """Return the last events, once the turn is in the log."""

    def fail(self, status: int, message: str) -> bytes:
        """Return the error event that replaces `end` if the turn fails."""


class Dialect(Protocol):
    """One API: reads its requests and writes its answers. Without side effects."""

    name: DialectName
    items: str
    """Field with the list of objects that grows from turn to turn; empty if the API has none."""

    def conversation(self, messages: Iterable[dict[str, Any]] = ()) -> Conversation:
        """Return a conversation that reads this API's items. messages: canonical messages that come before them."""

    def read(self, body: Mapping[str, Any], conversation: Conversation) -> AgentRequest:
        """Read a decoded body. conversation: reads the items.

        Messages become canonical: an answer that a client sends back equals `Answer.message`. Raises BadField with
        the name of a field that is wrong, or that would change the meaning and is not supported.
        """

    def whole(self, request: AgentRequest, answer: Answer) -> dict[str, Any]: ...

    def stream(self, request: AgentRequest, id: str, created: int, prompt_tokens: int = 0) -> Encoder: ...

    def refusal(self, status: int, message: str, field: str = "") -> dict[str, Any]:
        """Return the body of an error in this API's form."""


class BadField(Exception):
    """A request that is not valid. field: path such as `messages.0.role`, empty for the whole body."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field, self.message = field, message
