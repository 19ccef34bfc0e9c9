"""A reward function as users of slime write it: it asks another model, by the name of `--sglang-config`."""

from __future__ import annotations

from typing import Any

from slime.rollout.sglang_rollout import get_model_url  # type: ignore[import-not-found]
from slime.utils.http_utils import post  # type: ignore[import-not-found]


async def likelihood(args: Any, sample: Any, **_: object) -> float:
    """Return the mean log-prob of prompt and response in the model `judge`."""
    payload = {
        "input_ids": [int(token) for token in sample.tokens],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    answer = await post(get_model_url(args, "judge"), payload)
    log_probs = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"] if entry[0] is not None]
    return float(sum(log_probs) / len(log_probs))
