"""The functions of the guide to slime's plug points: one turn by its text, a reward, a filter."""

from slime.utils.http_utils import post
from slime.utils.processing_utils import load_tokenizer
from slime.utils.types import Sample


async def my_generate(args, sample: Sample, sampling_params) -> Sample:
    tokenizer = load_tokenizer(args.hf_checkpoint, trust_remote_code=True)
    output = await post(
        f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate",
        {"text": sample.prompt, "sampling_params": sampling_params},
    )
    prompt_tokens = tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    response_tokens = tokenizer(output["text"], add_special_tokens=False)["input_ids"]
    sample.tokens = prompt_tokens + response_tokens
    sample.response_length = len(response_tokens)
    sample.response = output["text"]
    sample.truncated = output["meta_info"]["finish_reason"]["type"] == "length"
    return sample


async def my_reward_func(args, sample: Sample, **kwargs) -> float:
    return float(str(sample.label) in sample.response and not sample.truncated)


def my_filter(args, samples: list[Sample], **kwargs) -> bool:
    return all(sample.reward > 0.5 for sample in samples)
