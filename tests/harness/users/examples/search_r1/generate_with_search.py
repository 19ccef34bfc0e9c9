"""A model that may search: `<search>question</search>` is answered with `<information>`, `<answer>` ends it."""

import asyncio
import re

from qa_em_format import compute_score_em
from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.types import Sample

SEARCH_R1_CONFIGS = {"max_turns": 3, "topk": 2, "search_concurrency": 256, "return_logprob": True, "format_score": 0.2}
SEMAPHORE = asyncio.Semaphore(SEARCH_R1_CONFIGS["search_concurrency"])
PAGES = {"capital of France": ["Paris is the capital of France.", "France is in Europe.", "Lyon is a city."]}
TAGS = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


async def search(query: str, topk: int) -> str:
    await asyncio.sleep(0)
    pages = PAGES.get(query, ["nothing"])[:topk]
    return "\n".join(f"Doc {number + 1}: {page}" for number, page in enumerate(pages))


def cut_after_tag(text: str) -> str:
    for tag in ("</search>", "</answer>"):
        if tag in text:
            return text.split(tag)[0] + tag
    return text


async def execute(response: str, config: dict) -> tuple[str, bool]:
    match = TAGS.search(response)
    if match is None:
        return "\nMy previous action is invalid. Let me try again.\n", False
    if match.group(1) == "answer":
        return "", True
    async with SEMAPHORE:
        pages = await search(match.group(2).strip(), config["topk"])
    return f"\n\n<information>{pages.strip()}</information>\n\n", False


async def generate(args, sample: Sample, sampling_params) -> Sample:
    assert not args.partial_rollout, "Partial rollout is not supported for this function at the moment."
    config = {name: getattr(args, f"search_{name}", value) for name, value in SEARCH_R1_CONFIGS.items()}
    state = GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    prompt_text = sample.prompt
    prompt_tokens_ids = state.tokenizer(prompt_text, add_special_tokens=False)["input_ids"]
    response, response_token_ids, loss_mask = "", [], []
    rollout_log_probs = [] if config["return_logprob"] else None

    for _ in range(config["max_turns"]):
        payload = {"text": prompt_text + response, "sampling_params": sampling_params}
        if config["return_logprob"]:
            payload["return_logprob"] = True
        output = await post(url, payload)
        if output["meta_info"]["finish_reason"]["type"] == "abort":
            sample.status = Sample.Status.ABORTED
            return sample
        new_text = output["text"]
        if config["return_logprob"]:
            pairs = output["meta_info"]["output_token_logprobs"]
            new_ids = [pair[1] for pair in pairs]
            rollout_log_probs += [pair[0] for pair in pairs]
        else:  # cut by its text, and tokenized again
            new_text = cut_after_tag(new_text)
            new_ids = state.tokenizer(new_text, add_special_tokens=False)["input_ids"]
        response += new_text
        response_token_ids += new_ids
        loss_mask += [1] * len(new_ids)
        if output["meta_info"]["finish_reason"]["type"] == "length":
            break
        observed, done = await execute(new_text, config)
        if done:
            break
        assert observed != "", "Next observation should not be empty."
        observed_ids = state.tokenizer(observed, add_special_tokens=False)["input_ids"]
        response += observed
        response_token_ids += observed_ids
        loss_mask += [0] * len(observed_ids)
        if rollout_log_probs is not None:
            rollout_log_probs += [0.0] * len(observed_ids)
            assert len(response_token_ids) == len(rollout_log_probs)

    sample.tokens = prompt_tokens_ids + response_token_ids
    sample.response_length = len(response_token_ids)
    sample.response = response
    sample.loss_mask = loss_mask
    sample.prompt = prompt_text
    if rollout_log_probs:
        sample.rollout_log_probs = rollout_log_probs
    match output["meta_info"]["finish_reason"]["type"]:
        case "length":
            sample.status = Sample.Status.TRUNCATED
        case "abort":
            sample.status = Sample.Status.ABORTED
        case "stop":
            sample.status = Sample.Status.COMPLETED
    return sample


async def reward_func(args, sample, **kwargs):
    if not isinstance(sample, Sample):
        raise TypeError("Sample must be an instance of Sample class.")
    return compute_score_em(
        solution_str=sample.prompt + sample.response,
        ground_truth=sample.label["ground_truth"],
        format_score=SEARCH_R1_CONFIGS["format_score"],
    )
