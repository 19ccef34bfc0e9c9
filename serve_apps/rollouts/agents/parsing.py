"""Chooses SGLang's parsers for the answers of a run's model, and refuses requests that need more."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.errors import InvalidValue, MissingPart
from serve_apps.engines.checks import GRAMMARS
from serve_apps.engines.engine import Tokens
from serve_apps.engines.limits import grammar_backend
from serve_apps.rollouts.agents.agent_request import AgentRequest, BadField, DialectName
from serve_apps.rollouts.agents.detokenizer import Detokenizer, StopFilter
from serve_apps.rollouts.agents.rendering import ChatTokenizer
from serve_apps.rollouts.agents.turn_reader import Parsed, ReasoningParser, ToolParser, TurnReader
from slime_events.core.config.engine import EngineSettings

_AUTO = "auto"
TOOLS_FLAG, REASONING_FLAG = "--sglang-tool-call-parser", "--sglang-reasoning-parser"
_MARKED = frozenset(("apertus2509", "gemma4", "gpt-oss", "inkling", "kimi_k3", "mistral", "muse"))
"""Reasoning parsers whose marks are special tokens, which must stay in the text."""
_COUNTED = {"kimi_k2": "functions.{name}:{number}", "kimi_k3": "{name}:{number}"}
"""Form of call ids by parser, for parsers whose ids count the calls of the conversation."""
_TAIL = 32
"""Tokens at the end of a prompt in which a mark of reasoning is searched."""


@dataclass(frozen=True, slots=True)
class ParserNames:
    """SGLang's names of the parsers, as its flags take them."""

    tools: Annotated[str, doc("parser of tool calls; empty for none")] = ""
    reasoning: Annotated[str, doc("parser of reasoning; empty for none")] = ""
    grammar: Annotated[bool, doc("engines have a grammar back-end, which constrains the generated text")] = False


def parser_names(settings: EngineSettings) -> ParserNames:
    """Return the parsers of a run's settings. On the CPU, engines have a grammar back-end only if a flag sets one."""
    flags = settings.sglang
    return ParserNames(
        flags.get("tool_call_parser") or "",
        flags.get("reasoning_parser") or "",
        grammar=grammar_backend(settings) != "none",
    )


class Parsers:
    """The parsers of a run's model. SGLang is imported only if a parser is named.

    folder: model folder, whose generation config lists the tokens that end an answer. Raises InvalidValue for a name
    that SGLang does not have, and MissingPart if SGLang is not installed.
    """

    def __init__(self, names: ParserNames, tokenizer: ChatTokenizer, folder: Path | None = None) -> None:
        self._names, self._tokenizer = _resolved(names, tokenizer), tokenizer
        self._ends = _ends(tokenizer, folder)
        flag = TOOLS_FLAG
        try:
            if self._names.tools:
                self._tool_parser(AgentRequest(DialectName.CHAT, ""))
            flag = REASONING_FLAG
            if self._names.reasoning:
                self._reasoning_parser((), with_tools=False)
        except ValueError as error:
            raise InvalidValue(f"{flag}: the parser does not fit this model: {error}") from error

    def check(self, request: AgentRequest) -> None:
        """Raise BadField if the request needs a parser or a grammar back-end that the run does not have."""
        if request.tools and request.tool_choice != "none" and not self._names.tools:
            raise BadField("tools", f"this run has no parser for tool calls: start the run with {TOOLS_FLAG}")
        if self._names.grammar:
            return
        if grammars := [name for name in GRAMMARS if name in request.sampling]:
            why = "this run's engines have no grammar back-end (--sglang-grammar-backend)"
            field = {"chat": "response_format", "responses": "text.format", "messages": "output_config.format"}
            raise BadField(field.get(request.dialect, f"sampling_params.{grammars[0]}"), why)
        if request.tool_choice not in ("auto", "none"):
            raise BadField("tool_choice", "must be auto or none: this run's engines have no grammar back-end")

    def constraint(self, request: AgentRequest) -> dict[str, Any]:
        """Return sampling parameters that constrain an answer to the required tool calls. Raises BadField."""
        is_strict = any(tool["function"].get("strict") for tool in request.tools)
        if (
            not self._names.grammar
            or request.tool_choice == "none"
            or (request.tool_choice == "auto" and not is_strict)
        ):
            return {}
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        parser = FunctionCallParser([Tool(**tool) for tool in request.tools], self._names.tools, self._tokenizer)
        choice = _choice(request.tool_choice)
        constraint = parser.get_structure_constraint(choice, parallel_tool_calls=request.parallel)
        if constraint is None:
            return {}
        if grammars := [name for name in GRAMMARS if name in request.sampling]:
            raise BadField("tool_choice", f"a required tool call and {grammars[0]} exclude each other: set one of them")
        kind, value = constraint
        if kind == "full_assistant_ebnf":
            return {"ebnf": value, "ebnf_full_assistant": True}
        plain = value.model_dump(by_alias=True) if hasattr(value, "model_dump") else value
        return {kind: plain if isinstance(plain, str) else json.dumps(plain)}

    def reader(
        self, request: AgentRequest, id: str, prompt: Sequence[int] | Tokens, stops: Sequence[str] | None = None
    ) -> TurnReader:
        """Return a reader for one turn.

        id: id of the turn, from which the ids of its calls are derived. prompt: token ids; its end shows whether the
        answer begins inside reasoning. stops: stop strings; None: those of the request.
        """
        is_plain = request.dialect is DialectName.GENERATE
        with_tools = not is_plain and bool(request.tools) and request.tool_choice != "none" and bool(self._names.tools)
        reasoning = (
            None if is_plain or not self._names.reasoning else self._reasoning_parser(prompt, with_tools=with_tools)
        )
        keeps = with_tools or (reasoning is not None and self._names.reasoning in _MARKED)
        skips = request.skip_special if request.skip_special is not None else not keeps
        stops = request.sampling.get("stop", ()) if stops is None else stops
        return TurnReader(
            request,
            self._ends | set(request.sampling.get("stop_token_ids", ())),
            StopFilter(stops, trims=request.trim_stop),
            Detokenizer(self._tokenizer, skips=skips),
            Parsed(
                reasoning,
                self._tool_parser(request) if with_tools else None,
                self._ids(request, id),
                parallel=request.parallel,
            ),
        )

    def _tool_parser(self, request: AgentRequest) -> ToolParser:
        """Return a parser for the model's own form of calls, or for the JSON form that a grammar enforces."""
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser
        from sglang.srt.function_call.json_array_parser import JsonArrayParser

        tools, choice = [Tool(**tool) for tool in request.tools], _choice(request.tool_choice)
        parser = FunctionCallParser(tools, self._names.tools, tokenizer=self._tokenizer, tool_choice=choice)
        if choice != "auto" and not parser.owns_tool_format():
            parser.detector = JsonArrayParser()
        tool_parser: ToolParser = parser
        return tool_parser

    def _reasoning_parser(self, prompt: Sequence[int] | Tokens, *, with_tools: bool) -> ReasoningParser | None:
        """Return a new parser; None if the prompt already ended the reasoning."""
        from sglang.srt.parser import reasoning_parser as sglang

        name = self._names.reasoning
        new = partial(sglang.ReasoningParser, tokenizer=self._tokenizer, tool_call_parser_active=with_tools)
        parser = new(name, True, None)
        end = self._tokenizer.decode([int(token) for token in prompt[-_TAIL:]], skip_special_tokens=False).rstrip()
        if end.endswith(parser.detector.think_end_token):
            return None
        reasoning_parser: ReasoningParser = parser
        if end.endswith(parser.detector.think_start_token):
            reasoning_parser = new(name, True, True)
        return reasoning_parser

    def _ids(self, request: AgentRequest, turn: str) -> Callable[[int, str], str]:
        """Return a function that maps index and name of a call to its id. Kimi's templates need a fixed form of id."""
        form = _COUNTED.get(self._names.tools)
        if form is not None:
            before = sum(len(message.get("tool_calls", ())) for message in request.messages)
            return lambda index, name: form.format(name=name, number=before + index)
        return lambda index, _: f"call_{hashlib.sha256(f'{turn}/{index}'.encode()).hexdigest()[:24]}"


def _choice(word: str) -> object:
    """Return a tool choice as SGLang's functions take it."""
    from sglang.srt.entrypoints.openai.protocol import ToolChoice, ToolChoiceFuncName

    return word if word in ("auto", "required") else ToolChoice(function=ToolChoiceFuncName(name=word))


def _resolved(names: ParserNames, tokenizer: ChatTokenizer) -> ParserNames:
    """Replace `auto` by the parser that fits the chat template. Raises MissingPart, InvalidValue."""
    if not (names.tools or names.reasoning):
        return names
    try:
        from sglang.srt.function_call.parser_names import TOOL_CALL_PARSER_NAMES
        from sglang.srt.parser.reasoning_parser_names import REASONING_PARSER_NAMES

        if _AUTO in (names.tools, names.reasoning):
            names = _detected(names, tokenizer)
    except ImportError as error:
        message = f"parsers of tool calls and reasoning need SGLang, which is not fully installed here: {error}"
        raise MissingPart(message) from error
    for flag, name, names_of_sglang in (
        (TOOLS_FLAG, names.tools, TOOL_CALL_PARSER_NAMES),
        (REASONING_FLAG, names.reasoning, REASONING_PARSER_NAMES),
    ):
        if name and name not in names_of_sglang:
            raise InvalidValue(f"{flag} {name}: SGLang has {', '.join(names_of_sglang)}")
    return names


def _detected(names: ParserNames, tokenizer: ChatTokenizer) -> ParserNames:
    from sglang.srt.parser import template_detection as detection

    template = getattr(tokenizer, "chat_template", None)
    always, toggle = detection.detect_reasoning_pattern(template)
    tools, reasoning = names.tools, names.reasoning
    if tools == _AUTO:
        tools = detection.detect_tool_call_parser(template, tokenizer, toggle, always) or ""
    if reasoning == _AUTO:
        reasoning = detection.detect_reasoning_parser(template, tokenizer, toggle, always) or ""
    return ParserNames(tools, reasoning, grammar=names.grammar)


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def _ends(tokenizer: ChatTokenizer, folder: Path | None) -> set[int]:
    """Return the token ids that end an answer, by the tokenizer and the model's generation config."""
    ends = {tokenizer.eos_token_id}
    path = folder / "generation_config.json" if folder else None
    if path is not None and path.is_file():
        more = msgspec.json.decode(path.read_bytes(), type=_GenerationConfig).eos_token_id
        ends |= set(more) if isinstance(more, list) else {more}
    return {token for token in ends if token is not None}
