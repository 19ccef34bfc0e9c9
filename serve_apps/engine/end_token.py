"""The tokens that end a response, and the tokenizer's as a plain attribute: SGLang 0.5.23 asks for it all the time."""

from __future__ import annotations

from typing import Any


def after_get_tokenizer(tokenizer: Any, *_: Any, **__: Any) -> None:
    """After hook of SGLang's `get_tokenizer`: transformers would look the id up in its vocabulary each time."""
    vars(tokenizer)["eos_token_id"] = tokenizer.eos_token_id


def end_tokens(manager: Any) -> frozenset[int]:
    """By which SGLang's scheduler ends a response, whatever the sampling says. manager: its tokenizer manager."""
    tokenizer, model = manager.tokenizer, manager.model_config
    found = {tokenizer.eos_token_id, *(model.hf_eos_token_id or ())}
    found |= set(getattr(tokenizer, "additional_stop_token_ids", None) or ())
    return frozenset(token for token in found if token is not None)
