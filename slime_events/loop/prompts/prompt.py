"""Prompts: from the fields of a line or of a producer's message to the event that submits or rejects the prompt."""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.arrays import EMPTY_TOKENS, pack_tokens
from schemas.doc import doc
from schemas.errors import SlimeEventsError
from schemas.ids import TRAIN
from schemas.outside_json import read_any
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from schemas.text import message_text, valid_text
from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.json_value import BadValue, json_value, label_value
from slime_events.loop.prompts.messages import BadMessage, names_of, read_messages
from slime_events.plugins.loss_masks import loss_masks_of
from slime_events.plugins.tokenizer import Tokenizer, TokenizerSource, encode_all, has_far_more, loaded_tokenizer


class BadReason(enum.StrEnum):
    """Why a line is unusable."""

    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    EMPTY_PROMPT = "empty_prompt"
    TOO_LONG = "too_long"
    TEMPLATE_FAILED = "template_failed"
    UNGRADABLE = "ungradable"


class Problem(msgspec.Struct, frozen=True):
    """Why a line's fields are not a valid prompt. message: a sentence with the field's name."""

    reason: BadReason
    message: str


class BadRow(Problem, frozen=True, kw_only=True):
    """An unusable line."""

    file: Annotated[str, doc("path or URL")]
    line: Annotated[int, doc("1-based; in Parquet, the row")]
    epoch: int = 0
    position: Annotated[int, doc("index in the stream over all epochs; -1: the line is not a JSON object")] = -1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


class Prompt(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A prompt as the model sees it."""

    text: Annotated[str, doc("after the chat template")]
    tokens: Annotated[npt.NDArray[np.int32] | None, doc("int32 [prompt]; None: without a tokenizer")]
    messages: Annotated[list[dict[str, Any]] | None, doc("the chat that it was made from; None: it was a text")]
    label: Annotated[Any, doc("JSON value")]
    metadata: Annotated[Any, doc("JSON value")]
    tools: list[dict[str, Any]] | None
    chat: Annotated[bool, doc("see `PromptSubmitted`")] = False

    @property
    def as_given(self) -> str | list[dict[str, Any]]:
        """The prompt as slime's functions see it."""
        return self.messages if self.chat and self.messages else self.text


class PromptRow(Prompt, frozen=True, kw_only=True, eq=False):
    """A prompt of a file."""

    row: Annotated[int, doc("index in the data set, after the slice, without lines that are not JSON objects")]
    epoch: int
    position: Annotated[int, doc("index in the stream over all epochs, `epoch * len(source) + index in the epoch`")]
    line: Annotated[int, doc("1-based")]


class _BadFieldError(Exception):
    """Raised with the reason and the message of a `Problem`."""


def make_prompt(
    fields: Mapping[str, Any],
    settings: DataSettings,
    tokenizer: TokenizerSource | None = None,
    max_prompt_len: int | None = None,
) -> Prompt | Problem:
    """Read, render and tokenise a prompt.

    A text prompt under --apply-chat-template becomes a user's message, as in slime. No special tokens are added to the
    text. max_prompt_len: tokens; a longer prompt is a Problem. Chat templates and tokens need a tokenizer.
    """
    (prompt,) = make_prompts([(fields, settings)], tokenizer, max_prompt_len)
    return prompt


def make_prompts(
    inputs: Sequence[tuple[Mapping[str, Any], DataSettings]],
    tokenizer: TokenizerSource | None = None,
    max_prompt_len: int | None = None,
) -> list[Prompt | Problem]:
    """Call `make_prompt` for each input, and tokenise all together. Raises errors of loading the tokenizer."""
    tokenizer = None if tokenizer is None else loaded_tokenizer(tokenizer)
    prompts = [_rendered(fields, settings, tokenizer, max_prompt_len) for fields, settings in inputs]
    if tokenizer is None:
        return prompts
    prompts = [_if_not_far_too_long(prompt, tokenizer, max_prompt_len) for prompt in prompts]
    bare = [(i, prompt) for i, prompt in enumerate(prompts) if isinstance(prompt, Prompt) and prompt.tokens is None]
    for (index, prompt), tokens in zip(bare, _encoded(tokenizer, [prompt.text for _, prompt in bare]), strict=True):
        prompts[index] = tokens if isinstance(tokens, Problem) else _with_tokens(prompt, tokens, max_prompt_len)
    return prompts


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int] | Problem]:
    """Return the token ids of each text, or the problem of a text that the tokenizer refuses."""
    try:
        return [*encode_all(tokenizer, texts)]
    except SlimeEventsError:  # such as an error of loading the tokenizer
        raise
    except Exception as error:  # a tokenizer may be a program of the model's authors
        if len(texts) == 1:
            message = f"the tokenizer raised {type(error).__name__}: {message_text(error)}"
            return [Problem(BadReason.TEMPLATE_FAILED, message)]
    return [tokens for text in texts for tokens in _encoded(tokenizer, [text])]


def _rendered(
    fields: Mapping[str, Any], settings: DataSettings, tokenizer: Tokenizer | None, max_prompt_len: int | None
) -> Prompt | Problem:
    """Return a prompt without its tokens, except for a chat to train on."""
    try:
        label = _label(fields, settings.label_key)
        metadata = _metadata(fields, settings.metadata_key)
        tools = _tools(fields, settings.tool_key)
        messages: list[dict[str, Any]] | None
        tokens: npt.NDArray[np.int32] | None = None
        if settings.supervised:
            text, messages, tokens = _example(fields, settings, tokenizer, max_prompt_len, tools)
        else:
            text, messages = _text(fields, settings, tokenizer, tools)
    except _BadFieldError as error:
        return Problem(*error.args)
    chat = messages is not None and not settings.apply_chat_template
    return Prompt(text=text, tokens=tokens, messages=messages, label=label, metadata=metadata, tools=tools, chat=chat)


def _text(
    fields: Mapping[str, Any], settings: DataSettings, tokenizer: Tokenizer | None, tools: list[dict[str, Any]] | None
) -> tuple[str, list[dict[str, Any]] | None]:
    key = settings.input_key
    prompt = _required(fields, key, "--input-key")
    if prompt is None or prompt in ("", []):
        raise _BadFieldError(BadReason.EMPTY_PROMPT, f"the prompt in {key!r} is empty")
    if not settings.apply_chat_template and isinstance(prompt, str | int | float) and not isinstance(prompt, bool):
        return _number_or_text(prompt, key), None
    messages = _chat([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt, key, _OF_PROMPT)
    assert tokenizer is not None, "a chat template needs a tokenizer"
    template = {**({"tools": tools} if tools else {}), **settings.apply_chat_template_kwargs}
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **template)
    except SlimeEventsError:  # such as an error of loading the tokenizer
        raise
    except Exception as error:  # a template is a program of the model's authors
        raise _template_failed(error) from error
    return valid_text(str(text)), messages


_OF_PROMPT = "a text or a list of chat messages"


def _number_or_text(prompt: str | int | float, key: str) -> str:
    """Return a prompt as text. A number is that of a task, which a generate function looks up."""
    return valid_text(str(_json(prompt, key, label_value)))


def _chat(messages: object, key: str, expected: str) -> list[dict[str, Any]]:
    """Return messages that the model can see. Raises _BadFieldError."""
    if not isinstance(messages, list) or not any(isinstance(message, dict) for message in messages):
        raise _wrong_type(key, messages, expected)
    try:
        return read_messages(messages, key)
    except (BadMessage, BadValue) as error:
        raise _BadFieldError(BadReason.WRONG_TYPE, str(error)) from None


def _template_failed(error: Exception) -> _BadFieldError:
    message = f"the chat template raised {type(error).__name__}: {message_text(error)}"
    return _BadFieldError(BadReason.TEMPLATE_FAILED, message)


def _example(
    fields: Mapping[str, Any],
    settings: DataSettings,
    tokenizer: Tokenizer | None,
    max_prompt_len: int | None,
    tools: list[dict[str, Any]] | None,
) -> tuple[str, list[dict[str, Any]], npt.NDArray[np.int32] | None]:
    """Return a whole chat to train on. Its prompt is the part before the first trained token."""
    key = settings.input_key
    messages = _required(fields, key, "--input-key")
    messages = _chat(messages, key, "a list of chat messages with role and content")
    bare = next((at for at, message in enumerate(messages) if "content" not in message), None)
    if bare is not None:
        raise _BadFieldError(BadReason.WRONG_TYPE, f"{key}[{bare}].content: it is missing")
    if not any(message["role"] == "assistant" for message in messages):
        raise _BadFieldError(BadReason.EMPTY_PROMPT, f"no message of {key!r} is an assistant's: nothing to train on")
    if tokenizer is None:
        return "", messages, None
    try:
        tokens, mask = loss_masks_of(tokenizer, settings.loss_mask_type).get_loss_mask(messages, tools)
    except Exception as error:  # a template is a program of the model's authors
        raise _template_failed(error) from error
    length = mask.index(1) if 1 in mask else 0
    if not length:
        raise _BadFieldError(BadReason.EMPTY_PROMPT, "the chat has no trained token, or none before the first one")
    if max_prompt_len is not None and length > max_prompt_len:
        message = f"the prompt has {length} tokens, at most {max_prompt_len} are allowed"
        raise _BadFieldError(BadReason.TOO_LONG, message)
    return tokenizer.decode(tokens[:length]), messages, np.asarray(tokens[:length], dtype=np.int32)


def _if_not_far_too_long(
    prompt: Prompt | Problem, tokenizer: Tokenizer, max_prompt_len: int | None
) -> Prompt | Problem:
    """Refuse a text of megabytes before it is tokenised to count its tokens."""
    if max_prompt_len is None or isinstance(prompt, Problem) or prompt.tokens is not None:
        return prompt
    try:
        if not has_far_more(tokenizer, prompt.text, max_prompt_len):
            return prompt
    except Exception:  # a tokenizer may raise anything; `_encoded` reports it
        return prompt
    message = (
        f"the prompt has {len(prompt.text):,} characters, far more than {max_prompt_len} tokens, which are allowed"
    )
    return Problem(BadReason.TOO_LONG, message)


def _with_tokens(prompt: Prompt, tokens: list[int], max_prompt_len: int | None) -> Prompt | Problem:
    if not tokens:
        return Problem(BadReason.EMPTY_PROMPT, "the prompt has no tokens")
    if max_prompt_len is not None and len(tokens) > max_prompt_len:
        message = f"the prompt has {len(tokens)} tokens, at most {max_prompt_len} are allowed"
        return Problem(BadReason.TOO_LONG, message)
    return msgspec.structs.replace(prompt, tokens=np.asarray(tokens, dtype=np.int32))


def _label(fields: Mapping[str, Any], key: str | None) -> Any:
    return None if key is None else _json(_required(fields, key, "--label-key"), key, label_value)


def _metadata(fields: Mapping[str, Any], key: str) -> Any:
    """Return any JSON value. A text that begins with { must be an object; one that begins with [ may be a list.

    Any further text stays a text: `[easy] from a book` is not meant to be JSON.
    """
    metadata = fields.get(key)
    if isinstance(metadata, str) and (start := metadata.lstrip()[:1]) in ("{", "["):
        metadata = _parsed(metadata, key, "an object") if start == "{" else _parsed_or_text(metadata)
    return {} if metadata in (None, "") else _json(metadata, key)


def _json(value: object, key: str, read: Callable[[Any, str], Any] = json_value) -> Any:
    try:
        return read(value, key)
    except BadValue as error:
        raise _BadFieldError(BadReason.WRONG_TYPE, str(error)) from None


def _tools(fields: Mapping[str, Any], key: str) -> list[dict[str, Any]] | None:
    tools = _parsed(fields.get(key), key, "a list of objects")
    if tools is None or tools == []:
        return None
    if not _is_list_of_objects(tools):
        raise _wrong_type(key, tools, "a list of objects")
    return list(_json(tools, key))


def _parsed(value: Any, key: str, expected: str) -> Any:
    # Data sets often carry JSON inside a text field.
    try:
        return read_any(value) if isinstance(value, str) else value
    except msgspec.DecodeError as error:
        message = f"{key!r} must be {expected} or its JSON, and its text is none: {message_text(error)}"
        raise _BadFieldError(BadReason.WRONG_TYPE, message) from error


def _parsed_or_text(text: str) -> Any:
    try:
        return read_any(text)
    except msgspec.DecodeError:
        return text


def _required(fields: Mapping[str, Any], key: str, flag: str) -> Any:
    if key not in fields:
        raise _BadFieldError(BadReason.MISSING_FIELD, f"no field {key!r} ({flag}); there is {names_of(fields)}")
    return fields[key]


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _wrong_type(key: str, value: object, expected: str) -> _BadFieldError:
    return _BadFieldError(BadReason.WRONG_TYPE, f"{key!r} must be {expected}, not {type(value).__name__}")


Prompted = PromptSubmitted | PromptRejected


def submitted(prompt: Prompt, group: str, source: Source, **fields: Any) -> PromptSubmitted:
    """Return the event of a usable prompt. fields: further fields, or replacements of the prompt's."""
    read = {"label": prompt.label, "metadata": prompt.metadata, "tools": prompt.tools, "chat": prompt.chat}
    return PromptSubmitted(
        group=group,
        text=prompt.text,
        tokens=EMPTY_TOKENS if prompt.tokens is None else pack_tokens(prompt.tokens),
        messages=prompt.messages,
        source=source,
        **(read | fields),
    )


def rejected(problem: Problem, source: Source, dataset: str = TRAIN) -> PromptRejected:
    """Return the event of an unusable prompt."""
    return PromptRejected(source=source, reason=f"{problem.reason.value}: {problem.message}", dataset=dataset)


def draw_prompt(
    fields: Mapping[str, Any],
    data: DataSettings,
    tokenizer: TokenizerSource,
    max_prompt_len: int | None,
    source: Source,
) -> Prompted:
    """Return a drawn prompt as this run's model sees it.

    fields: `input`, a chat or a text as the model sees it, and further fields of a line under their default names.
    """
    settings = DataSettings(
        label_key="label",
        apply_chat_template=not isinstance(fields["input"], str),
        apply_chat_template_kwargs=data.apply_chat_template_kwargs,
    )
    prompt = make_prompt(fields, settings, tokenizer, max_prompt_len)
    return rejected(prompt, source) if isinstance(prompt, Problem) else submitted(prompt, source.draw, source)
