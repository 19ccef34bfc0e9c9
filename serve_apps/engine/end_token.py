"""The tokens that end a response."""

from __future__ import annotations

from typing import Any


def end_tokens(manager: Any) -> frozenset[int]:
    """By which SGLang's scheduler ends a response, whatever the sampling says. manager: its tokenizer manager."""
    tokenizer, model = manager.tokenizer, manager.model_config
    found = {tokenizer.eos_token_id, *(model.hf_eos_token_id or ())}
    found |= set(getattr(tokenizer, "additional_stop_token_ids", None) or ())
    return frozenset(token for token in found if token is not None)
