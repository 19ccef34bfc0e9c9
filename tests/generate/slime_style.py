"""A generate function as it is written for slime: its imports, its URL, its payload, and tools of its own."""

from __future__ import annotations

from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.types import Sample


async def generate(args, sample: Sample, sampling_params, evaluation=False) -> Sample:
    state = GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    prompt_ids = state.tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    sample.tokens = list(prompt_ids)
    sample.loss_mask = []
    async with state.semaphore:
        for _ in range(args.max_turns):
            payload = {
                "input_ids": sample.tokens,
                "sampling_params": dict(sampling_params, max_new_tokens=6),
                "return_logprob": True,
            }
            output = await post(url, payload)
            meta = output["meta_info"]
            sample.append_response_tokens(
                args,
                tokens=[item[1] for item in meta["output_token_logprobs"]],
                log_probs=[item[0] for item in meta["output_token_logprobs"]],
                meta_info=meta,
                text=output["text"],
            )
            if meta["finish_reason"]["type"] == "stop":
                break
            answer = await post(args.retrieval_url, {"query": output["text"], "topk": 1})
            text = f"<information>{answer['result']}</information>"
            ids = state.tokenizer(text, add_special_tokens=False)["input_ids"]
            sample.append_response_tokens(args, tokens=ids, trainable=False, text=text)
    return sample
