"""Read the context length of a run's model from its settings and checkpoint."""

from pathlib import Path

from slime_events.core.checkpoint.model_config import config_parts
from slime_events.core.config.settings import TrainSettings

NAMES = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
"""Names of the longest sequence in a checkpoint's config.json, in SGLang's order: the first one present counts."""
LONG_CONTEXT = 256 * 1024
"""Tokens, for a run without a known context length."""


def context_of(settings: TrainSettings) -> int | None:
    """Return the most tokens of prompt and answer together; None if it is unknown.

    That is the smaller of --rollout-max-context-len and the engine's limit: --sglang-context-length, or the limit in
    config.json of --hf-checkpoint.
    """
    limits = (
        settings.rollout.rollout_max_context_len,
        settings.engine.sglang.get("context_length") or longest_of(settings.engine.hf_checkpoint),
    )
    return min((int(limit) for limit in limits if limit), default=None)


def longest_of(checkpoint: str | Path) -> int | None:
    """Return the tokens of the longest sequence by a checkpoint's config.json; None if it has no such number.

    As in SGLang, the number is multiplied by the factor of the rope scaling, unless the scaling has the original length
    (Llama 3, most YaRN models): then the number is already the scaled length.
    """
    for part in config_parts(checkpoint):
        size = next((size for size in map(part.get, NAMES) if type(size) is int and size > 0), None)
        if size is not None:
            return int(size * max(_factor(part.get("rope_scaling")), _factor(part.get("rope_parameters"))))
    return None


def _factor(scaling: object) -> float:
    if not isinstance(scaling, dict) or "original_max_position_embeddings" in scaling:
        return 1.0
    factor = None if scaling.get("rope_type") == "llama3" else scaling.get("factor")
    return factor if isinstance(factor, int | float) and 1 < factor < 1e4 else 1.0
