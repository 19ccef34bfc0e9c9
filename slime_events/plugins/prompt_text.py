"""`prompt_text`: what stood before a sample's response, as text. This is the one place that decides it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from schemas.arrays import Array

Decode = Callable[[Sequence[int]], str]
"""The text of some tokens."""
DecodePrompt = Callable[[Array], str]
"""The text of a prompt's tokens."""


class Submitted(Protocol):
    """Of `prompt.submitted`, or of a group."""

    @property
    def text(self) -> str: ...


class Answered(Protocol):
    """Of `rollout.completed`, or those of its fields."""

    @property
    def prompt(self) -> Array | None: ...
    @property
    def prompt_text(self) -> str: ...


def prompt_text(group: Submitted, completed: Answered | None, decode: DecodePrompt | None = None) -> str:
    """The prompt of one sample as the model read it, after the chat template.

    It is the group's, unless a generate function gave the sample a prompt of its own. Logs from before `prompt_text`
    was recorded hold only the tokens of such a prompt: `decode` makes text of them. Without it the text is empty, since
    the group's would be another prompt's.
    """
    if completed is None or completed.prompt is None:
        return group.text
    return completed.prompt_text or (decode(completed.prompt) if decode else "")


def text_decoder(checkpoint: str | None) -> Decode | None:
    """Texts by the tokenizer file of a run's `--hf-checkpoint`, special tokens included; None where it has gone."""
    path = Path(checkpoint or "", "tokenizer.json")
    if not checkpoint or not path.is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))


def prompt_decoder(checkpoint: str | None, fetch: Callable[[Array], Any]) -> DecodePrompt:
    """`decode` for `prompt_text`. The tokenizer is read when the first prompt needs it; empty where it has gone."""
    found: list[Decode | None] = []

    def decode(prompt: Array) -> str:
        if not found:
            found.append(text_decoder(checkpoint))
        return found[0](fetch(prompt).tolist()) if found[0] else ""

    return decode
