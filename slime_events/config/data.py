"""Where prompts come from."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from slime_events.config.base import Settings


class DataSettings(Settings, frozen=True, kw_only=True):
    """JSONL or Parquet on any fsspec URL, with an optional slice `path@[a:b]`."""

    prompt_data: Annotated[str | None, Meta(description="JSONL or Parquet, any fsspec URL, optional @[a:b]")] = None
    input_key: Annotated[str, Meta(description="field with the prompt: text or chat messages")] = "input"
    label_key: Annotated[str | None, Meta(description="field with the label")] = None
    metadata_key: Annotated[str, Meta(description="field with metadata")] = "metadata"
    tool_key: Annotated[str, Meta(description="field with tools")] = "tools"
    apply_chat_template: Annotated[bool, Meta(description="render messages with the tokenizer's chat template")] = False
    apply_chat_template_kwargs: Annotated[dict[str, Any], Meta(description="JSON: extra arguments of the template")] = (
        field(default_factory=dict)
    )
    rollout_shuffle: Annotated[bool, Meta(description="shuffle at each epoch (slime's rule: seed + epoch)")] = False
    max_bad_lines: Annotated[int, Meta(description="malformed or too long prompt lines before the run stops")] = 100
