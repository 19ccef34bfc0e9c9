"""The SDK's own client, unchanged, over the gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import tinker

from tests.tinker.scene import datum, scene


def drive(client: tinker.ServiceClient) -> Any:
    model = client.create_lora_training_client(base_model="tiny", rank=8).result()
    first = model.forward_backward([datum(5, 6, 7), datum(8, 9)], "cross_entropy")
    stepped = model.optim_step(tinker.AdamParams(learning_rate=1e-3))
    sampler = model.save_weights_and_get_sampling_client().result()
    prompt = tinker.ModelInput.from_ints([65, 66, 67])
    made = sampler.sample(prompt=prompt, num_samples=2, sampling_params=tinker.SamplingParams(max_tokens=5)).result()
    return first.result(), stepped.result(), made


async def test_a_client_trains_and_samples(tmp_path: Path) -> None:
    async with scene(tmp_path) as (_, gateway):
        client = await asyncio.to_thread(gateway.client)
        passed, stepped, made = await asyncio.wait_for(asyncio.to_thread(drive, client), 30)
    assert [len(one["logprobs"].data) for one in passed.loss_fn_outputs] == [3, 2]
    assert stepped.metrics["version"] == 1.0
    assert [len(one.tokens) for one in made.sequences] == [5, 5]
