"""`submitted`: a prompt that was read, whatever from, as the event that says it."""

from __future__ import annotations

from typing import Any

from schemas.arrays import EMPTY_TOKENS, pack_tokens
from schemas.prompts import PromptSubmitted, Source
from slime_events.loop.prompts.prompt import Prompt
from slime_events.loop.prompts.row import PromptRow


def submitted(prompt: PromptRow | Prompt, group: str, source: Source, **fields: Any) -> PromptSubmitted:
    """fields: what else the event says, or says otherwise than the prompt (an inbox has label and metadata apart)."""
    read = {"label": prompt.label, "metadata": prompt.metadata, "tools": prompt.tools}
    return PromptSubmitted(
        group=group,
        text=prompt.text,
        tokens=EMPTY_TOKENS if prompt.tokens is None else pack_tokens(prompt.tokens),
        messages=prompt.messages,
        source=source,
        **(read | fields),
    )
