"""How many tokens a run's model has room for, as its settings and its checkpoint say."""

from pathlib import Path

from slime_events.core.config.settings import TrainSettings
from slime_events.core.model_config import config_parts

NAMES = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
"""Of the longest sequence, in a checkpoint's config.json; as SGLang, the first that is there."""
LONG_CONTEXT = 256 * 1024
"""Tokens, for a run of which nothing says how long."""


def context_of(settings: TrainSettings) -> int | None:
    """Tokens of prompt and answer together; None where nothing says so.

    The smaller of --rollout-max-context-len and what the engine takes: --sglang-context-length, or else what
    config.json of --hf-checkpoint says.
    """
    limits = (
        settings.rollout.rollout_max_context_len,
        settings.engine.sglang.get("context_length") or longest_of(settings.engine.hf_checkpoint),
    )
    return min((int(one) for one in limits if one), default=None)


def longest_of(checkpoint: str | Path) -> int | None:
    """Tokens of the longest sequence by a checkpoint's config.json; None where that does not say.

    As SGLang reads it: a factor of the rope scaling counts, but where the scaling names the length from before it
    (Llama 3, YaRN of many), since the config has the length after it then.
    """
    for part in config_parts(checkpoint):
        found = next((size for size in map(part.get, NAMES) if type(size) is int and size > 0), None)
        if found is not None:
            return int(found * max(_factor(part.get("rope_scaling")), _factor(part.get("rope_parameters"))))
    return None


def _factor(scaling: object) -> float:
    if not isinstance(scaling, dict) or "original_max_position_embeddings" in scaling:
        return 1.0
    factor = None if scaling.get("rope_type") == "llama3" else scaling.get("factor")
    return factor if isinstance(factor, int | float) and 1 < factor < 1e4 else 1.0
