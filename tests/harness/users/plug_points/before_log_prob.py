"""--custom-megatron-before-log-prob-hook-path: looks at whose log-probs are about to be taken."""

from __future__ import annotations

from called import note


def look(args, model, store_prefix) -> None:
    note(
        "look", prefix=store_prefix, parameters=sum(weight.numel() for chunk in model for weight in chunk.parameters())
    )
