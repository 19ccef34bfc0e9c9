"""Which of SGLang's parsers read the answers of a run's model, and what they need of its engines."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from schemas.errors import InvalidValue, MissingPart
from serve_apps.agents.asked import AgentRequest, BadField, DialectName
from serve_apps.agents.detokenizer import Detokenizer, StopFilter
from serve_apps.agents.turn_reader import Parsed, TurnReader
from serve_apps.engine.checks import GRAMMARS
from serve_apps.engine.engine import Tokens
from serve_apps.engine.limits import grammar_backend
from slime_events.core.config.engine import EngineSettings

_AUTO = "auto"
TOOLS_FLAG, REASONING_FLAG = "--sglang-tool-call-parser", "--sglang-reasoning-parser"
_MARKED = frozenset(("apertus2509", "gemma4", "gpt-oss", "inkling", "kimi_k3", "mistral", "muse"))
"""Reasoning parsers whose marks are special tokens."""
_COUNTED = {"kimi_k2": "functions.{name}:{number}", "kimi_k3": "{name}:{number}"}
"""Ids of calls that are numbered through the conversation, by the parser."""
_TAIL = 32
"""Tokens of a prompt's end among which a mark of reasoning is looked for."""


@dataclass(frozen=True, slots=True)
class ParserNames:
    """SGLang's names, as its flags take them; empty for none. grammar: engines can be told which texts to generate."""

    tools: str = ""
    reasoning: str = ""
    grammar: bool = False


def parser_names(settings: EngineSettings) -> ParserNames:
    """Of a run's engines. On the CPU they have no grammar back-end, if none is asked for."""
    given = settings.sglang
    return ParserNames(
        given.get("tool_call_parser") or "",
        given.get("reasoning_parser") or "",
        grammar=grammar_backend(settings) != "none",
    )


class Parsers:
    """The parsers of a run's model. SGLang is imported where one is named.

    folder: of the model, whose generation config says which tokens end an answer. Raises InvalidValue for a name that
    SGLang does not have, MissingPart.
    """

    def __init__(self, names: ParserNames, tokenizer: Any, folder: Path | None = None) -> None:
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

    def check(self, asked: AgentRequest) -> None:
        """Raises BadField for what the model's engines or parsers cannot do."""
        if asked.tools and asked.tool_choice != "none" and not self._names.tools:
            raise BadField("tools", f"this run has no parser for calls of tools: start it with {TOOLS_FLAG}")
        if self._names.grammar:
            return
        if given := [name for name in GRAMMARS if name in asked.sampling]:
            why = "this run's engines have no grammar back-end (--sglang-grammar-backend)"
            field = {"chat": "response_format", "responses": "text.format", "messages": "output_config.format"}
            raise BadField(field.get(asked.dialect, f"sampling_params.{given[0]}"), why)
        if asked.tool_choice not in ("auto", "none"):
            raise BadField("tool_choice", "only auto and none: this run's engines have no grammar back-end")

    def constraint(self, asked: AgentRequest) -> dict[str, Any]:
        """More sampling, under which an answer has the calls that were asked for. Raises BadField."""
        is_strict = any(tool["function"].get("strict") for tool in asked.tools)
        if not self._names.grammar or asked.tool_choice == "none" or (asked.tool_choice == "auto" and not is_strict):
            return {}
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        parser = FunctionCallParser([Tool(**tool) for tool in asked.tools], self._names.tools, self._tokenizer)
        found = parser.get_structure_constraint(_choice(asked.tool_choice), parallel_tool_calls=asked.parallel)
        if found is None:
            return {}
        if any(name in asked.sampling for name in GRAMMARS):
            raise BadField("tool_choice", "an answer has one shape: a call, or the given one")
        kind, value = found
        if kind == "full_assistant_ebnf":
            return {"ebnf": value, "ebnf_full_assistant": True}
        plain = value.model_dump(by_alias=True) if hasattr(value, "model_dump") else value
        return {kind: plain if isinstance(plain, str) else json.dumps(plain)}

    def reader(
        self, asked: AgentRequest, id: str, prompt: Sequence[int] | Tokens, stops: Sequence[str] | None = None
    ) -> TurnReader:
        """For one turn. id: of the turn; the ids of its calls are made of it. prompt: token ids; its end says whether
        the answer begins in the midst of reasoning. stops: strings, where they are not the request's alone.
        """
        is_plain = asked.dialect is DialectName.GENERATE
        with_tools = not is_plain and bool(asked.tools) and asked.tool_choice != "none" and bool(self._names.tools)
        reasoning = (
            None if is_plain or not self._names.reasoning else self._reasoning_parser(prompt, with_tools=with_tools)
        )
        keeps = with_tools or (reasoning is not None and self._names.reasoning in _MARKED)
        skips = asked.skip_special if asked.skip_special is not None else not keeps
        stops = asked.sampling.get("stop", ()) if stops is None else stops
        return TurnReader(
            asked,
            self._ends | set(asked.sampling.get("stop_token_ids", ())),
            StopFilter(stops, trims=asked.trim_stop),
            Detokenizer(self._tokenizer, skips=skips),
            Parsed(
                reasoning,
                self._tool_parser(asked) if with_tools else None,
                self._ids(asked, id),
                parallel=asked.parallel,
            ),
        )

    def _tool_parser(self, asked: AgentRequest) -> Any:
        """As the model writes calls of its own accord, or as a grammar has it write them."""
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser
        from sglang.srt.function_call.json_array_parser import JsonArrayParser

        tools, choice = [Tool(**tool) for tool in asked.tools], _choice(asked.tool_choice)
        parser = FunctionCallParser(tools, self._names.tools, tokenizer=self._tokenizer, tool_choice=choice)
        if choice != "auto" and not parser.owns_tool_format():
            parser.detector = JsonArrayParser()
        return parser

    def _reasoning_parser(self, prompt: Sequence[int] | Tokens, *, with_tools: bool) -> Any:
        """None where the prompt has ended the reasoning already."""
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        def made(forced: bool | None) -> Any:
            name = self._names.reasoning
            return ReasoningParser(name, True, forced, tokenizer=self._tokenizer, tool_call_parser_active=with_tools)

        parser = made(None)
        end = self._tokenizer.decode([int(token) for token in prompt[-_TAIL:]], skip_special_tokens=False).rstrip()
        if end.endswith(parser.detector.think_end_token):
            return None
        return made(True) if end.endswith(parser.detector.think_start_token) else parser

    def _ids(self, asked: AgentRequest, turn: str) -> Callable[[int, str], str]:
        """Ids of the turn's calls. Templates of Kimi's show them to the model, which knows one form."""
        form = _COUNTED.get(self._names.tools)
        if form is not None:
            before = sum(len(message.get("tool_calls", ())) for message in asked.messages)
            return lambda index, name: form.format(name=name, number=before + index)
        return lambda index, _: f"call_{hashlib.sha256(f'{turn}/{index}'.encode()).hexdigest()[:24]}"


def _choice(word: str) -> Any:
    """As SGLang has it."""
    from sglang.srt.entrypoints.openai.protocol import ToolChoice, ToolChoiceFuncName

    return word if word in ("auto", "required") else ToolChoice(function=ToolChoiceFuncName(name=word))


def _resolved(names: ParserNames, tokenizer: Any) -> ParserNames:
    """With a name in the place of `auto`: the chat template says which."""
    if not (names.tools or names.reasoning):
        return names
    try:
        from sglang.srt.function_call.parser_names import TOOL_CALL_PARSER_NAMES
        from sglang.srt.parser.reasoning_parser_names import REASONING_PARSER_NAMES

        if _AUTO in (names.tools, names.reasoning):
            names = _detected(names, tokenizer)
    except ImportError as error:
        raise MissingPart(f"parsers of tools and reasoning are SGLang's, which is not all here: {error}") from error
    for flag, name, known in (
        (TOOLS_FLAG, names.tools, TOOL_CALL_PARSER_NAMES),
        (REASONING_FLAG, names.reasoning, REASONING_PARSER_NAMES),
    ):
        if name and name not in known:
            raise InvalidValue(f"{flag} {name}: SGLang has {', '.join(known)}")
    return names


def _detected(names: ParserNames, tokenizer: Any) -> ParserNames:
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


def _ends(tokenizer: Any, folder: Path | None) -> set[int]:
    """Token ids that end an answer: of the tokenizer, and of the model's generation config."""
    found = {tokenizer.eos_token_id}
    path = folder / "generation_config.json" if folder else None
    if path is not None and path.is_file():
        more = msgspec.json.decode(path.read_bytes(), type=_GenerationConfig).eos_token_id
        found |= set(more) if isinstance(more, list) else {more}
    return found - {None}
