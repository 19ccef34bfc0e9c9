"""Publish two prompts to a run that is on: `python produce.py nats://127.0.0.1:PORT RUN`. Needs nats-py alone."""

import asyncio
import json
import sys

import nats


async def main(url: str, run: str) -> None:
    client = await nats.connect(url)
    prompts = [{"key": f"quiz-{n}", "prompt": f"What is {n} + {n}?", "label": str(2 * n)} for n in (3, 4)]
    reply = await client.request(f"slime.{run}.inbox.prompts", json.dumps(prompts).encode(), timeout=30)
    print(json.loads(reply.data))  # {"accepted": true, "groups": ["inbox-...", "inbox-..."]}
    await client.close()


asyncio.run(main(*sys.argv[1:]))
