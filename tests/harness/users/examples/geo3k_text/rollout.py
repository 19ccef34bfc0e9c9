"""Turns with an environment that is named in the configuration; a budget of tokens over all of them."""

import importlib
import importlib.util
import sys
from pathlib import Path

from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.processing_utils import build_processor_kwargs, encode_image_for_rollout_engine
from slime.utils.types import Sample

DUMMY_MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "I am a user."},
]


def _load_env_module(path: str):
    file = Path(path)
    if file.suffix == ".py" and file.exists():
        spec = importlib.util.spec_from_file_location(f"rollout_env_{file.stem}", file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    return importlib.import_module(path)


def _encode_observation(tokenizer, processor, message, metadata, args):
    """Tokens of one message, without what the template puts before it."""
    tools = metadata.get("tools") if metadata else None
    kwargs = args.apply_chat_template_kwargs or {}
    dummy = tokenizer.apply_chat_template(
        DUMMY_MESSAGES, tools=tools, tokenize=False, add_generation_prompt=False, **kwargs
    )
    text = tokenizer.apply_chat_template(
        [*DUMMY_MESSAGES, message], tools=tools, tokenize=False, add_generation_prompt=True, **kwargs
    )
    images = []
    if processor:
        images = [encode_image_for_rollout_engine(image) for image in message.get("images", [])]
        ids = processor(text=text, **build_processor_kwargs({"images": images}))["input_ids"][0]
    else:
        ids = tokenizer.encode(text, add_special_tokens=False)
    ids = ids[len(tokenizer.encode(dummy, add_special_tokens=False)) :]
    if tokenizer.bos_token_id is not None and ids and ids[0] == tokenizer.bos_token_id:
        ids = ids[1:]
    return ids, images


async def _inference(url, tokens, sampling_params, image_data):
    payload = {"input_ids": tokens, "sampling_params": sampling_params, "return_logprob": True}
    if image_data:
        payload["image_data"] = image_data
    output = await post(url, payload)
    pairs = output["meta_info"]["output_token_logprobs"]
    return output["text"], [pair[1] for pair in pairs], [pair[0] for pair in pairs], output["meta_info"]


async def generate(args, sample: Sample, sampling_params) -> Sample:
    assert not args.partial_rollout, "Partial rollout is not supported for interaction rollouts."
    state = GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    sample.metadata = sample.metadata or {}
    env = _load_env_module(args.rollout_interaction_env_path).build_env(sample=sample, args=args)
    params, image_data = sampling_params.copy(), []
    if not sample.tokens:
        sample.tokens = list(state.tokenizer.encode(sample.prompt, add_special_tokens=False))
    response_tokens = []
    sample.loss_mask = sample.loss_mask or []
    sample.rollout_log_probs = sample.rollout_log_probs or []
    budget = params["max_new_tokens"]
    if args.rollout_max_context_len is not None:
        budget = min(budget, args.rollout_max_context_len - len(sample.tokens))
    try:
        env.reset()
        for turn in range(args.max_turns):
            params["max_new_tokens"] = budget
            text, tokens, log_probs, meta = await _inference(url, sample.tokens, params, image_data)
            response_tokens.extend(tokens)
            sample.append_response_tokens(args, tokens=tokens, log_probs=log_probs, trainable=True, meta_info=meta)
            budget -= len(tokens)
            if meta["finish_reason"]["type"] == "abort":
                sample.status = Sample.Status.ABORTED
                break
            if meta["finish_reason"]["type"] == "length" or budget <= 0:
                sample.status = Sample.Status.TRUNCATED
                break
            observation, done, _ = env.step(text)
            if done or turn + 1 >= args.max_turns:
                sample.status = Sample.Status.COMPLETED
                break
            message = env.format_observation(observation)
            tokens, more = _encode_observation(state.tokenizer, state.processor, message, sample.metadata, args)
            response_tokens.extend(tokens)
            sample.append_response_tokens(args, tokens=tokens, trainable=False)
            image_data += more
            budget -= len(tokens)
            if budget <= 0:
                sample.status = Sample.Status.TRUNCATED
                break
        sample.response = state.tokenizer.decode(response_tokens, skip_special_tokens=False)
        sample.response_length = len(response_tokens)
        return sample
    finally:
        env.close()


async def reward_func(args, sample, **kwargs):
    return float(sample.response.rstrip().removesuffix("<|im_end|>").endswith(f"= {sample.label}"))
