"""What a line of a data file comes to: a prompt, or a named reason why it is none."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt


class BadReason(enum.StrEnum):
    """What is wrong with a line."""

    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    EMPTY_PROMPT = "empty_prompt"
    TOO_LONG = "too_long"
    TEMPLATE_FAILED = "template_failed"


class Problem(msgspec.Struct, frozen=True):
    """Why a line's fields are no prompt. message: one sentence with the field's name."""

    reason: BadReason
    message: str


class BadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line that cannot be used: in which file (path or URL), on which line (1-based; of Parquet the row), and why.

    position: its place in the stream over all epochs; -1 for a line that is no JSON object, which has none.
    """

    file: str
    line: int
    reason: BadReason
    message: str
    epoch: int = 0
    position: int = -1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt as the model will see it.

    row: index in the data set (after the slice, without lines that are no JSON objects). position: its place in the
    stream over all epochs, `epoch * len(source) + place in the epoch`. text: after the chat template; messages: the
    chat it was made from, if any. tokens: int32 [prompt], None without a tokenizer. source: `path:line`.
    """

    row: int
    epoch: int
    position: int
    line: int
    source: str
    text: str
    tokens: npt.NDArray[np.int32] | None
    messages: list[dict[str, Any]] | None = None
    label: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tools: list[dict[str, Any]] | None = None
