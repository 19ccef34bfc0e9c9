"""Solvers side by side, rewriters that see them all, and a selector: each answer is a sample of the rollout."""

import asyncio
import re
from copy import deepcopy

import prompts
from slime.rollout.rm_hub import batched_async_rm
from slime.utils.http_utils import post
from slime.utils.types import Sample


async def generate_response(args, text, key):
    sample = deepcopy(args.sample)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    if args.apply_chat_template:
        messages = [{"role": "user", "content": text}]
        prompt_text = args.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    else:
        prompt_text = text
    sample.prompt = prompt_text
    sample.tokens = args.tokenizer(prompt_text, add_special_tokens=False)["input_ids"]
    params = deepcopy(args.sampling_params)
    params["max_new_tokens"] = min(params["max_new_tokens"], args.rollout_max_context_len - len(sample.tokens))
    if params["max_new_tokens"] <= 0:
        return None
    payload = {"input_ids": sample.tokens, "sampling_params": params, "return_logprob": True}
    output = await post(url, payload)
    new_tokens = [item[1] for item in output["meta_info"]["output_token_logprobs"]]
    sample.tokens = sample.tokens + new_tokens
    sample.response_length += len(new_tokens)
    sample.response = output["text"]
    match output["meta_info"]["finish_reason"]["type"]:
        case "length":
            sample.status = Sample.Status.TRUNCATED
        case "stop":
            sample.status = Sample.Status.COMPLETED
    args.results_dict[key].append(sample)
    _, _, answer = output["text"].replace("<|im_end|>", "").rpartition("</think>")
    sample.reason_content, sample.response_content = None, answer.strip() or None
    return sample.response_content


async def _side_by_side(args, template, key, **fields):
    text = template.format(**fields)
    answers = await asyncio.gather(*(generate_response(args, text, key) for _ in range(args.num_parallel)))
    rewards = await batched_async_rm(args, args.results_dict[key])
    for sample, reward in zip(args.results_dict[key], rewards, strict=True):
        sample.reward = reward
    return [answer for answer in answers if isinstance(answer, str)]


def _named(solutions):
    return {f"solution{number}": solution for number, solution in enumerate(solutions, 1)}


async def run_agent_system(args, sample):
    args = deepcopy(args)  # changed from here on
    args.sample = sample
    args.results_dict = {"solver": [], "rewriter": [], "selector": []}
    problem, results = sample.prompt, args.results_dict
    solutions = await _side_by_side(args, prompts.SOLVER, "solver", problem=problem)
    rewritten = []
    if solutions:
        template = prompts.rewriter(len(solutions))
        rewritten = await _side_by_side(args, template, "rewriter", problem=problem, **_named(solutions))
    weight = args.incorrect_reward_weight
    if rewritten:
        template = prompts.selector(len(rewritten))
        judgment = await generate_response(args, template.format(problem=problem, **_named(rewritten)), "selector")
        chosen = re.findall(r"Judgment:\s*(\d+)", judgment or "")
        (selected,) = results["selector"]
        selected.reward = 0
        if chosen and 0 < int(chosen[0]) <= len(rewritten):
            selected.reward = results["rewriter"][int(chosen[0]) - 1].reward
        if selected.reward == 1:
            weight = args.correct_reward_weight
    samples = [*results["solver"], *results["rewriter"], *results["selector"]]
    for sample in samples:
        sample.reward = sample.reward * weight
    return samples
