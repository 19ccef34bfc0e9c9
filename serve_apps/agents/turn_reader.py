"""The text of a turn to content, reasoning and calls, as its tokens come.

tokens -> Detokenizer -> StopFilter -> SGLang's reasoning parser -> its tool parser -> Part ...

SGLang's parsers say something else about the same text where it comes in other pieces. So they are fed by token, and
not by what came at a time: an answer that is read again from the log, or streamed, is the same message.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from schemas.rollouts import StopReason
from schemas.text import valid_text
from serve_apps.agents.asked import AgentRequest, CallArguments, CallBegun, Content, Part, Reasoning
from serve_apps.agents.canonical import Call, assistant
from serve_apps.agents.detokenizer import Detokenizer, StopFilter

_log = logging.getLogger(__name__)
_LAG = 32
"""SGLang reads all of a call's arguments again with each piece. Pieces that grow with them (1/32) keep that linear."""


class TurnReader:
    """One turn as it comes. ends: token ids that end an answer. After `end` it has message, text, matched, pieces and
    reasoning_tokens, as `Said` has them.
    """

    def __init__(
        self, asked: AgentRequest, ends: Collection[int], stops: StopFilter, detokenizer: Detokenizer, parsed: "Parsed"
    ) -> None:
        self._ends, self._stops, self._detokenizer, self._parsed = ends, stops, detokenizer, parsed
        self._trims, self._with_pieces = asked.trim_stop, asked.log_probs is not None
        self._held: int | None = None
        self._text: list[str] = []
        self._pieces: list[bytes] = []

    def feed(self, tokens: Sequence[int], log_probs: Sequence[float]) -> list[Part]:
        """What the next tokens say. The last part of them has the tokens."""
        parts: list[Part] = []
        for batch in self._batches(tokens):
            parts += self._read(self._detokenizer.add(batch), len(batch))
        pieces = [self._detokenizer.piece(token) for token in tokens] if self._with_pieces else []
        self._pieces += pieces
        of_tokens = (tuple(tokens), tuple(log_probs), tuple(pieces))
        if parts and isinstance(parts[-1], Content):
            return [*parts[:-1], Content(parts[-1].text, *of_tokens)]
        return [*parts, Content("", *of_tokens)] if tokens else parts

    def end(self, stop: StopReason) -> list[Part]:
        """What was held back. stop: why the turn has ended."""
        self.matched: str | int | None = None
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
        return parts + self._parsed.feed(rest, 0) + self._parsed.end()

    @property
    def message(self) -> dict[str, Any]:
        return self._parsed.message()

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
        """One by one for parsers, at once without. A token that may be the answer's end waits for another one."""
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
    """Text by SGLang's parsers, and what it has come to. Text that a parser cannot read is content."""

    def __init__(self, reasoning: Any, tools: Any, ids: Callable[[int, str], str], *, parallel: bool) -> None:
        self._reasoning_parser, self._tool_parser = reasoning, tools
        self._ids, self._most = ids, None if parallel else 1
        self.is_parsed = reasoning is not None or tools is not None
        self._content, self._reasoning, self._said = "", "", ""
        self._calls: list[list[str]] = []
        self._is_muted = False
        self._waiting, self._waiting_tokens, self._tokens, self._of_call = "", 0, 0, 0
        self.reasoning_tokens = 0

    def feed(self, text: str, tokens: int) -> list[Part]:
        """The parts that a piece of text makes; tokens: of it."""
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
        """Reasoning takes the tokens up to the first that is none."""
        is_over = bool(self._content or self._calls)
        self._tokens += 0 if is_over else tokens
        self.reasoning_tokens = self._tokens if self._reasoning else 0

    def _parts(self, text: str) -> list[Part]:
        thought = ""
        if self._reasoning_parser is not None:
            parser = self._reasoning_parser
            thought, text = self._guarded(lambda: parser.parse_stream_chunk(text), ("", text), "_reasoning_parser")
        return self._thought(thought) + self._normal(text)

    def _thought(self, text: str | None) -> list[Part]:
        self._reasoning += text or ""
        return [Reasoning(text)] if text else []

    def _normal(self, text: str | None) -> list[Part]:
        if not text:
            return []
        self._said += text
        if self._tool_parser is None:
            return self._shown(text)
        parser = self._tool_parser
        shown, calls = self._guarded(lambda: parser.parse_stream_chunk(text), (text, []), "_tool_parser")
        return self._shown(shown) + self._called(calls)

    def _shown(self, text: str | None) -> list[Part]:
        self._content += text or ""
        return [Content(text)] if text else []

    def _called(self, calls: Sequence[Any]) -> list[Part]:
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
                arguments = valid_text(call.parameters)  # the parser has read the model's JSON: "\\ud83d" is in it
                self._calls[-1][2] += arguments
                parts.append(CallArguments(len(self._calls) - 1, arguments))
        return parts

    def end(self) -> list[Part]:
        """What the parsers held back."""
        parts = self._parse()
        if self._reasoning_parser is not None:
            thought, text = self._guarded(self._reasoning_parser.parse_stream_end, ("", ""), "_reasoning_parser")
            parts += self._thought(thought) + self._normal(text)
        if self._tool_parser is not None:
            parts += self._end_of_calls()
        return parts

    def _end_of_calls(self) -> list[Part]:
        parser, parts = self._tool_parser, list[Part]()
        text, calls = self._guarded(parser.parse_stream_end, ("", []), "_tool_parser")
        parts += self._shown(text) + self._called(calls)
        if self._tool_parser is None:
            return parts
        if self._calls:
            return parts + self._called(_arguments_left(parser.detector))
        # A parser holds back what may begin a call, and does not give it out where none came of it.
        if self._said.startswith(self._content) and not parser.has_tool_call(self._said):
            parts += self._shown(self._said[len(self._content) :])
        return parts

    def _guarded(self, parse: Callable[[], Any], otherwise: Any, parser: str) -> Any:
        """SGLang's parsers raise on some texts that a model in training writes. The rest of the text goes past it."""
        try:
            return parse()
        except Exception as error:
            _log.warning("SGLang's parser raised %s: %s; the text goes on as content", type(error).__name__, error)
            setattr(self, parser, None)
            return otherwise

    def message(self) -> dict[str, Any]:
        return assistant(self._content, self._reasoning, [Call(*call) for call in self._calls])


def _arguments_left(detector: Any) -> list[Any]:
    """The last call's arguments that the parser has read and not given out: it does so with the next piece only."""
    read, given = getattr(detector, "prev_tool_call_arr", None), getattr(detector, "streamed_args_for_tool", None)
    if not read or not given or len(read) > len(given):
        return []
    arguments = read[-1].get("arguments", {})
    whole = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    sent = given[len(read) - 1]
    if not whole.startswith(sent) or whole == sent:
        return []
    from sglang.srt.function_call.core_types import ToolCallItem

    return [ToolCallItem(tool_index=len(read) - 1, parameters=whole[len(sent) :])]
