"""--custom-generate-function-path: posts to the router by itself, with a client that knows nothing of slime."""

from __future__ import annotations

import asyncio
import json
import urllib.request

from called import note
from slime.rollout.sglang_rollout import GenerateState
from slime.utils.types import Sample


def ask(url: str, payload: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(payload).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


async def generate(args, sample: Sample, sampling_params) -> Sample:
    note("own_client")
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    sample.tokens = GenerateState(args).tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    payload = {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True}
    answer = await asyncio.to_thread(ask, url, payload)
    pairs = answer["meta_info"]["output_token_logprobs"]
    sample.append_response_tokens(
        args,
        tokens=[token for _, token, *_ in pairs],
        log_probs=[log_prob for log_prob, *_ in pairs],
        text=answer["text"],
        meta_info=answer["meta_info"],
    )
    return sample
