"""The end token of a tokenizer as a plain attribute. SGLang 0.5.23 asks for it with every generated token."""

from __future__ import annotations

from typing import Any


def after_get_tokenizer(tokenizer: Any, *_: Any, **__: Any) -> None:
    """After hook of SGLang's `get_tokenizer`: transformers would look the id up in its vocabulary each time."""
    vars(tokenizer)["eos_token_id"] = tokenizer.eos_token_id
