"""Mistral, without a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.megatron.families.dense import Dense


class Mistral(Dense):
    """Mistral-7B from v0.2 on, Mistral-Nemo and Mistral-Small: Llama's layers, with heads of any size."""

    model_class = "MistralForCausalLM"

    def unsupported(self, config: Mapping[str, Any]) -> dict[str, bool]:
        """Return the conditions of `Dense`, and the sliding window of Mistral-7B v0.1, which is on if it is set."""
        window = config.get("sliding_window")
        return super().unsupported(config) | {f"sliding_window {window} (null is supported)": window is not None}
