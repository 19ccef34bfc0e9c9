"""A long conversation in two parts: each is a sample with a prompt of its own, and the group shares out its rewards."""

import copy

from slime.rollout.sglang_rollout import GenerateState, generate
from slime.utils.types import Sample


async def generate_segments(args, sample: Sample, sampling_params, evaluation=False) -> list[Sample]:
    tokenizer = GenerateState(args).tokenizer
    first = copy.deepcopy(sample)
    first = await generate(args, first, {**sampling_params, "max_new_tokens": 20})
    second = copy.deepcopy(sample)
    second.prompt = f"{sample.prompt} So far: {first.response}"
    second.tokens = tokenizer.encode(second.prompt, add_special_tokens=False)
    second = await generate(args, second, dict(sampling_params))
    for number, part in enumerate((first, second)):
        part.rollout_id = sample.index
        part.metadata["segment"] = number
    return [first, second]


async def group_reward(args, samples, **kwargs):
    """The last part of a rollout decides for all of its parts."""
    assert len(samples) == 2 * args.n_samples_per_prompt
    decided = {sample.rollout_id: sample.response for sample in samples if sample.metadata["segment"] == 1}
    return [float(str(sample.label) in decided[sample.rollout_id]) for sample in samples]
