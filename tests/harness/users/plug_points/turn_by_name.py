"""--custom-generate-function-path: slime's own `generate`, with spans around it and a second look at the answer."""

from __future__ import annotations

import copy

from called import note
from slime.observability.trace_utils import trace_function, trace_span
from slime.rollout.sglang_rollout import GenerateState
from slime.rollout.sglang_rollout import generate as one_turn
from slime.utils.types import Sample


@trace_function("generate", target="sample")
async def generate(args, sample: Sample, sampling_params, evaluation=False) -> Sample:
    note("generate", evaluation=evaluation)
    state = GenerateState(args)
    with trace_span(sample, "turn", attrs={"limit": sampling_params["max_new_tokens"]}) as span:
        sample = await one_turn(args, sample, sampling_params | {"max_new_tokens": 6})
        span.update({"tokens": sample.response_length})
    twin = copy.deepcopy(sample)
    sample.metadata["same"] = state.tokenizer.decode(sample.tokens) == state.tokenizer.decode(twin.tokens)
    sample.metadata["spans"] = [event["name"] for event in sample.trace["events"] if event["type"] == "span_end"]
    sample.metadata["evaluated"] = evaluation
    return sample


async def short(args, sample: Sample, sampling_params) -> Sample:
    """For the prompts that name it."""
    return await one_turn(args, sample, {**sampling_params, "max_new_tokens": 2})
