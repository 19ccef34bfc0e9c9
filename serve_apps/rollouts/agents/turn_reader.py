"""Splits a turn into content, reasoning and tool calls while its tokens come.

tokens -> Detokenizer -> StopFilter -> SGLang's reasoning parser -> its tool parser -> Part ...

The result of SGLang's parsers depends on how the text is split into pieces. So the parsers get one token at a time,
however many come at once: an answer that is streamed equals the same answer read from the log.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from schemas.rollouts import StopReason
from schemas.text import valid_text
from serve_apps.rollouts.agents.agent_request import AgentRequest, CallArguments, CallBegun, Content, Part, Reasoning
from serve_apps.rollouts.agents.canonical import Call, assistant
from serve_apps.rollouts.agents.detokenizer import Detokenizer, StopFilter

_log = logging.getLogger(__name__)
_LAG = 32
"""SGLang parses all arguments of a call again with each piece. Pieces of 1/32 of a call keep the total cost linear."""
T = TypeVar("T")


class ParsedCall(Protocol):
    """A piece of a tool call from SGLang's parser."""

    name: str | None
    parameters: str


class ToolParser(Protocol):
    """SGLang's `FunctionCallParser`: splits text into content and tool calls."""

    detector: object

    def parse_stream_chunk(self, chunk_text: str) -> tuple[str, list[ParsedCall]]: ...
    def parse_stream_end(self) -> tuple[str, list[ParsedCall]]: ...
    def has_tool_call(self, text: str) -> bool: ...


class ReasoningParser(Protocol):
    """SGLang's `ReasoningParser`: splits text into reasoning and the text after it."""

    def parse_stream_chunk(self, stream_chunk: str) -> tuple[str | None, str | None]: ...
    def parse_stream_end(self) -> tuple[str | None, str | None]: ...


class TurnReader:
    """Reads one turn. ends: token ids that end an answer.

    length: number of tokens that were read. parts: parts of these tokens. last: parts of the end; None before `end`.
    After `end`, `message`, `text`, `matched`, `pieces` and `reasoning_tokens` equal those of `Answer`.
    """

    def __init__(
        self,
        request: AgentRequest,
        ends: Collection[int],
        stops: StopFilter,
        detokenizer: Detokenizer,
        parsed: "Parsed",
    ) -> None:
        self._ends, self._stops, self._detokenizer, self._parsed = ends, stops, detokenizer, parsed
        self._trims, self._with_pieces = request.trim_stop, request.log_probs is not None
        self._held: int | None = None
        self.length = 0
        self.parts: list[Part] = []
        self.last: list[Part] | None = None
        self.message: dict[str, Any] = {}
        self.matched: str | int | None = None
        self._text: list[str] = []
        self._pieces: list[bytes] = []

    def feed(self, tokens: Sequence[int], log_probs: Sequence[float]) -> list[Part]:
        """Return the parts that the next tokens add. The last part is a `Content` with all these tokens."""
        parts: list[Part] = []
        for batch in self._batches(tokens):
            parts += self._read(self._detokenizer.add(batch), len(batch))
        pieces = [self._detokenizer.piece(token) for token in tokens] if self._with_pieces else []
        self._pieces += pieces
        of_tokens = (tuple(tokens), tuple(log_probs), tuple(pieces))
        if parts and isinstance(parts[-1], Content):
            parts[-1] = Content(parts[-1].text, *of_tokens)
        elif tokens:
            parts.append(Content("", *of_tokens))
        self.length += len(tokens)
        self.parts += parts
        return parts

    def end(self, stop: StopReason) -> list[Part]:
        """Return the parts that were held back. stop: reason why the turn ended."""
        parts: list[Part] = []
        if self._held is not None:
            is_end = stop is StopReason.STOP and self._stops.matched is None
            self.matched = self._held if is_end else None
            if not (is_end and self._trims):
                parts += self._read(self._detokenizer.add([self._held]), 1)
        parts += self._read(self._detokenizer.end(), 0)
        if self._stops.matched is not None:
            self.matched = self._stops.matched
        rest = self._stops.end()
        self._text.append(rest)
        self.last = parts + self._parsed.feed(rest, 0) + self._parsed.end()
        self.message = self._parsed.message()
        return self.last

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def pieces(self) -> tuple[bytes, ...]:
        return tuple(self._pieces)

    @property
    def reasoning_tokens(self) -> int:
        return self._parsed.reasoning_tokens

    def _read(self, text: str, tokens: int) -> list[Part]:
        shown = self._stops.add(text)
        self._text.append(shown)
        return self._parsed.feed(shown, tokens)

    def _batches(self, tokens: Sequence[int]) -> Iterator[list[int]]:
        """Yield tokens one by one for parsers, otherwise together. Hold a possible end token until the next token."""
        batch: list[int] = []
        for token in tokens:
            if self._held is not None:
                batch.append(self._held)
            self._held = token if token in self._ends else None
            if self._held is None:
                batch.append(token)
            if batch and self._parsed.is_parsed:
                yield batch
                batch = []
        if batch:
            yield batch


class Parsed:
    """Runs SGLang's parsers and collects their result. Text that a parser cannot read is content.

    ids: returns the id of a call from its index and name. parallel: the answer may have several calls.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None,
        tools: ToolParser | None,
        ids: Callable[[int, str], str],
        *,
        parallel: bool,
    ) -> None:
        self._reasoning_parser, self._tool_parser = reasoning, tools
        self._ids, self._most = ids, None if parallel else 1
        self.is_parsed = reasoning is not None or tools is not None
        self._content, self._reasoning, self._raw = "", "", ""
        self._calls: list[list[str]] = []
        self._is_muted = False
        self._waiting, self._waiting_tokens, self._tokens, self._of_call = "", 0, 0, 0
        self.reasoning_tokens = 0

    def feed(self, text: str, tokens: int) -> list[Part]:
        """Return the parts that a piece of text adds. tokens: number of its tokens."""
        self._waiting, self._waiting_tokens = self._waiting + text, self._waiting_tokens + tokens
        self._of_call += tokens if self._calls else 0
        if self._waiting_tokens < self._of_call // _LAG:
            return []
        return self._parse()

    def _parse(self) -> list[Part]:
        text, self._waiting, self._waiting_tokens, tokens = self._waiting, "", 0, self._waiting_tokens
        parts = self._parts(text) if text else []
        self._count(tokens)
        return parts

    def _count(self, tokens: int) -> None:
        """Count tokens before the first content or call as reasoning, if there is reasoning."""
        is_over = bool(self._content or self._calls)
        self._tokens += 0 if is_over else tokens
        self.reasoning_tokens = self._tokens if self._reasoning else 0

    def _parts(self, text: str) -> list[Part]:
        if (parser := self._reasoning_parser) is None:
            return self._after_reasoning(text)
        fallback: tuple[str | None, str | None] = ("", text)
        thought, rest = self._guarded(lambda: parser.parse_stream_chunk(text), fallback, "_reasoning_parser")
        return self._thought(thought) + self._after_reasoning(rest)

    def _thought(self, text: str | None) -> list[Part]:
        self._reasoning += text or ""
        return [Reasoning(text)] if text else []

    def _after_reasoning(self, text: str | None) -> list[Part]:
        if not text:
            return []
        self._raw += text
        if (parser := self._tool_parser) is None:
            return self._shown(text)
        fallback = (text, list[ParsedCall]())
        shown, calls = self._guarded(lambda: parser.parse_stream_chunk(text), fallback, "_tool_parser")
        return self._shown(shown) + self._call_parts(calls)

    def _shown(self, text: str | None) -> list[Part]:
        self._content += text or ""
        return [Content(text)] if text else []

    def _call_parts(self, calls: Sequence[ParsedCall]) -> list[Part]:
        parts: list[Part] = []
        for call in calls:
            if call.name:
                self._is_muted = self._most is not None and len(self._calls) >= self._most
            if call.name and not self._is_muted:
                index = len(self._calls)
                self._calls.append([self._ids(index, call.name), call.name, ""])
                self._of_call = 0
                parts.append(CallBegun(index, self._calls[-1][0], call.name))
            if call.parameters and self._calls and not self._is_muted:
                arguments = valid_text(call.parameters)  # the parser decodes JSON, where "\\ud83d" is a lone surrogate
                self._calls[-1][2] += arguments
                parts.append(CallArguments(len(self._calls) - 1, arguments))
        return parts

    def end(self) -> list[Part]:
        """Return the parts that the parsers held back."""
        parts = self._parse()
        if self._reasoning_parser is not None:
            fallback: tuple[str | None, str | None] = ("", "")
            thought, text = self._guarded(self._reasoning_parser.parse_stream_end, fallback, "_reasoning_parser")
            parts += self._thought(thought) + self._after_reasoning(text)
        if self._tool_parser is not None:
            parts += self._end_of_calls(self._tool_parser)
        return parts

    def _end_of_calls(self, parser: ToolParser) -> list[Part]:
        text, calls = self._guarded(parser.parse_stream_end, ("", list[ParsedCall]()), "_tool_parser")
        parts = self._shown(text) + self._call_parts(calls)
        if self._tool_parser is None:
            return parts
        if self._calls:
            return parts + self._call_parts(_arguments_left(parser.detector))
        # A parser holds back text that may begin a call, and never returns it if no call follows.
        if self._raw.startswith(self._content) and not parser.has_tool_call(self._raw):
            parts += self._shown(self._raw[len(self._content) :])
        return parts

    def _guarded(self, parse: Callable[[], T], fallback: T, parser: str) -> T:
        """Return the parser's result. If it raises, drop the parser and return `fallback`: the rest is content."""
        try:
            return parse()
        except Exception as error:  # SGLang's parsers raise any error on some texts that a model in training writes
            _log.warning("SGLang's parser raised %s: %s. The text is kept as content", type(error).__name__, error)
            setattr(self, parser, None)
            return fallback

    def message(self) -> dict[str, Any]:
        return assistant(self._content, self._reasoning, [Call(*call) for call in self._calls])


def _arguments_left(detector: object) -> list[ParsedCall]:
    """Return the last call's arguments that the parser holds back until a next piece, which does not come."""
    read, returned = getattr(detector, "prev_tool_call_arr", None), getattr(detector, "streamed_args_for_tool", None)
    if not read or not returned or len(read) > len(returned):
        return []
    arguments = read[-1].get("arguments", {})
    whole = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    sent = returned[len(read) - 1]
    if not whole.startswith(sent) or whole == sent:
        return []
    from sglang.srt.function_call.core_types import ToolCallItem

    return [ToolCallItem(tool_index=len(read) - 1, parameters=whole[len(sent) :])]
