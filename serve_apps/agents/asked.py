"""What an agent asks of the model and what it is told, whatever dialect it speaks.

body -> Dialect.read -> Asked -> (a turn) -> Part ... Said -> Dialect.whole or Dialect.stream -> body
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from schemas.rollouts import StopReason
from serve_apps.agents.canonical import Conversation


class DialectName(enum.StrEnum):
    """An API that agents speak."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GENERATE = "generate"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. messages: chat messages as chat templates take them (OpenAI's keys: role, content, tool_calls,
    tool_call_id, reasoning_content, name), system first. tokens, text: ids or a text in their place, of /generate.
    tools: functions as OpenAI's chat API has them. tool_choice: auto, none, required, or a function's name. parallel:
    an answer may have several calls. sampling: SGLang's names, those alone that were given. template:
    `chat_template_kwargs`. stream: as it comes. log_probs: how many alternatives were asked for beside the log-prob of
    each token; None: no log-probs. skip_special: special tokens are left out of the text; None: as the parsers need it.
    trim_stop: what ended the answer is left out too. body: the request, decoded, for what a dialect repeats. client:
    what the agent's HTTP client calls itself.
    """

    dialect: DialectName
    model: str
    messages: tuple[dict[str, Any], ...] = ()
    tokens: tuple[int, ...] | None = None
    text: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str = "auto"
    parallel: bool = True
    sampling: Mapping[str, Any] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    log_probs: int | None = None
    skip_special: bool | None = None
    trim_stop: bool = True
    body: Mapping[str, Any] = field(default_factory=dict)
    client: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer's text. tokens, log_probs: those that came since the last piece, of reasoning and of calls
    too. pieces: the bytes of each token, where log-probs are asked for.
    """

    text: str
    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    pieces: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a tool begins. index: among the turn's calls, from 0. id: `call_` and a digest of turn and index."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments, JSON text."""

    index: int
    text: str


Part = Content | Reasoning | CallBegun | CallArguments


@dataclass(frozen=True, slots=True)
class Said:
    """The whole answer. id: of the turn, the same at each try. created: seconds of Unix time, of the turn's request.
    message: the assistant's message with OpenAI's keys (content, reasoning_content, tool_calls), as it comes back in
    the next request. stop, matched: why it ended; matched: the stop string or token id that ended it. tokens,
    log_probs: generated, equally many. pieces: the bytes of each, where log-probs are asked for. versions: of the
    weights that made them, oldest first. text: of the tokens. reasoning_tokens: those that the reasoning took.
    """

    id: str
    created: int
    message: dict[str, Any]
    stop: StopReason
    text: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    versions: tuple[int, ...] = ()
    matched: str | int | None = None
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    pieces: tuple[bytes, ...] = ()


class Encoder(Protocol):
    """One streamed answer, as bytes of server-sent events. Called in this order: begin, part ..., end or fail."""

    def begin(self) -> bytes: ...

    def part(self, part: Part) -> bytes: ...

    def end(self, said: Said) -> bytes:
        """The terminal events: the turn is in the log."""

    def fail(self, status: int, message: str) -> bytes:
        """In the place of `end`: the turn cannot be made."""


class Dialect(Protocol):
    """One API, both ways. Pure."""

    name: DialectName
    items: str
    """The field that grows from turn to turn, a list of objects; empty for none."""

    def conversation(self, messages: Iterable[dict[str, Any]] = ()) -> Conversation:
        """Whose items are those of this API. messages: read before."""

    def read(self, request: Mapping[str, Any], told: Conversation) -> Asked:
        """request: the body, decoded. told: takes its items. The messages are canonical: an answer that comes back is
        the message that `Said` has. Raises BadField with the name of what is wrong, or changes the meaning and is not
        supported here.
        """

    def whole(self, asked: Asked, said: Said) -> dict[str, Any]: ...

    def stream(self, asked: Asked, id: str, created: int, prompt_tokens: int = 0) -> Encoder: ...

    def refusal(self, status: int, message: str, field: str = "") -> dict[str, Any]:
        """The body of an error, as this API's clients expect it."""


class BadField(Exception):
    """A request that cannot be: the field (`messages.0.role`; empty for the whole body) and why, one sentence."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field, self.message = field, message
