"""Generate functions as slime's users write them when they post by themselves: two turns, by one client or another."""

from __future__ import annotations

import asyncio
import json
import os

import aiohttp
import httpx
import requests
from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.types import Sample

from tests.run.sockets import listening


def address(args, path: str = "/generate") -> str:
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}{path}"


async def converse(args, sample: Sample, sampling_params, ask, turns: int = 2) -> Sample:
    """ask: gives an answer of /generate to a payload."""
    tokenizer = GenerateState(args).tokenizer
    sample.tokens = tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    for left in reversed(range(turns)):
        payload = {
            "input_ids": sample.tokens,
            "sampling_params": {**sampling_params, "max_new_tokens": 6},
            "return_logprob": True,
        }
        answer = await ask(payload)
        pairs = answer["meta_info"]["output_token_logprobs"]
        sample.append_response_tokens(
            args,
            tokens=[pair[1] for pair in pairs],
            log_probs=[pair[0] for pair in pairs],
            text=answer["text"],
            meta_info=answer["meta_info"],
        )
        if left:
            words = tokenizer("<again>", add_special_tokens=False)["input_ids"]
            sample.append_response_tokens(args, tokens=words, text="<again>", trainable=False)
    return sample


async def by_slimes_post(args, sample: Sample, sampling_params) -> Sample:
    return await converse(args, sample, sampling_params, lambda payload: post(address(args), payload))


async def by_aiohttp(args, sample: Sample, sampling_params) -> Sample:
    async with aiohttp.ClientSession() as client:

        async def ask(payload):
            async with client.post(address(args), json=payload) as answer:
                answer.raise_for_status()
                return await answer.json()

        return await converse(args, sample, sampling_params, ask)


async def uneven(args, sample: Sample, sampling_params) -> Sample:
    """Many turns for every second prompt."""
    async with httpx.AsyncClient(timeout=None) as client:

        async def ask(payload):
            return (await client.post(address(args), json=payload)).raise_for_status().json()

        turns = 6 if int(sample.prompt.split()[-1]) % 2 else 1
        return await converse(args, sample, sampling_params, ask, turns)


async def by_httpx(args, sample: Sample, sampling_params) -> Sample:
    async with httpx.AsyncClient(timeout=None) as client:

        async def ask(payload):
            return (await client.post(address(args), json=payload)).raise_for_status().json()

        return await converse(args, sample, sampling_params, ask)


async def by_requests(args, sample: Sample, sampling_params) -> Sample:
    """Blocks the loop that it runs on, with all other rollouts."""

    async def ask(payload):
        return requests.post(address(args), json=payload).json()  # noqa: ASYNC210

    return await converse(args, sample, sampling_params, ask)


async def by_requests_in_a_thread(args, sample: Sample, sampling_params) -> Sample:
    async def ask(payload):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: requests.post(address(args), json=payload).json())

    return await converse(args, sample, sampling_params, ask)


async def as_a_stream(args, sample: Sample, sampling_params) -> Sample:
    async def ask(payload):
        last = None
        async with (
            httpx.AsyncClient(timeout=None) as client,
            client.stream("POST", address(args), json={**payload, "stream": True}) as answer,
        ):
            async for line in answer.aiter_lines():
                if line.startswith("data:") and line != "data: [DONE]":
                    last = json.loads(line.removeprefix("data:"))
        return last

    return await converse(args, sample, sampling_params, ask)


async def looks_around(args, sample: Sample, sampling_params) -> Sample:
    seen = {}
    async with httpx.AsyncClient() as client:
        for path in ("/health", "/get_model_info", "/v1/models"):
            answer = await client.get(address(args, path))
            seen[path] = (answer.status_code, answer.text)
        for name, path, body in (
            ("/v1/chat/completions", "/v1/chat/completions", b'{"messages": []}'),
            ("no JSON", "/generate", b"{"),
            ("no prompt", "/generate", b"{}"),
            ("bad tokens", "/generate", b'{"input_ids": [1, "a"]}'),
        ):
            answer = await client.post(address(args, path), content=body)
            seen[name] = (answer.status_code, answer.text)
        both = {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 2}}
        sample.metadata["both"] = len((await client.post(address(args), json=both)).json())
    sample.metadata["seen"] = seen
    return await _one_turn(args, sample)


async def _one_turn(args, sample: Sample) -> Sample:
    answer = await post(
        address(args), {"text": sample.prompt, "sampling_params": {"max_new_tokens": 6}, "return_logprob": True}
    )
    sample.tokens = GenerateState(args).tokenizer.encode(sample.prompt)
    tokens, pairs = answer["output_ids"], answer["meta_info"]["output_token_logprobs"]
    sample.append_response_tokens(args, tokens=tokens, log_probs=[pair[0] for pair in pairs], text=answer["text"])
    return sample


async def asks_wrongly(args, sample: Sample, sampling_params) -> Sample:
    async with httpx.AsyncClient() as client:
        payload = {"text": sample.prompt, "sampling_params": {"no_stop_trim": False}}
        return (await client.post(address(args), json=payload)).raise_for_status().json()


async def never_gives_up(args, sample: Sample, sampling_params) -> Sample:
    async with httpx.AsyncClient() as client:
        while (await client.post(address(args), json={"text": sample.prompt})).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return sample


async def impatient(args, sample: Sample, sampling_params) -> Sample:
    tries = 0
    while True:
        tries += 1
        try:
            async with httpx.AsyncClient(timeout=0.1) as client:
                payload = {"text": sample.prompt, "sampling_params": {"max_new_tokens": 12}, "return_logprob": True}
                answer = (await client.post(address(args), json=payload)).json()
                break
        except httpx.TimeoutException:
            continue
    sample.metadata["tries"] = tries
    sample.tokens = GenerateState(args).tokenizer.encode(sample.prompt)
    pairs = answer["meta_info"]["output_token_logprobs"]
    sample.append_response_tokens(
        args, tokens=answer["output_ids"], log_probs=[pair[0] for pair in pairs], text=answer["text"]
    )
    return sample


async def leaves_one(args, sample: Sample, sampling_params) -> Sample:
    async with httpx.AsyncClient(timeout=0.02) as client:
        try:
            await client.post(address(args), json={"text": "never mind", "sampling_params": {"max_new_tokens": 200}})
        except httpx.TimeoutException:
            sample.metadata["left"] = True
    return await _one_turn(args, sample)


async def notes_its_port(args, sample: Sample, sampling_params) -> Sample:
    sample.metadata["port"] = args.sglang_router_port
    here = listening(os.getpid())
    sample.metadata["listening"] = [address.address for address in here if address.port == args.sglang_router_port]
    return await _one_turn(args, sample)
