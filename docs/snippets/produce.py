"""Send two prompts to a run that is on: `python produce.py slime-runs/RUN/nats/producer.json`. Needs nats-py alone."""

import asyncio
import json
import sys
from pathlib import Path

import nats
from nats.errors import NoRespondersError


async def main(credentials: str) -> None:
    to = json.loads(Path(credentials).read_text())
    client = await nats.connect(to["url"], user=to["user"], password=to["password"])
    prompts = [{"key": f"quiz-{n}", "prompt": f"What is {n} + {n}?", "label": str(2 * n)} for n in (3, 4)]
    while True:
        try:
            reply = await client.request(f"slime.{to['run']}.inbox.prompts", json.dumps(prompts).encode(), timeout=30)
            break
        except NoRespondersError:  # the run does not take prompts yet
            await asyncio.sleep(1)
    print(json.loads(reply.data))  # {"accepted": true, "groups": ["inbox-...", "inbox-..."]}
    await client.close()


asyncio.run(main(*sys.argv[1:]))
