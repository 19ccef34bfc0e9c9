"""`python -m tests.harness.attacks.scripted FOLDER PORT`: the attacked run with a scripted engine and trainer.

Log, launcher, conductor, inbox, grader and the gateway's process are the real ones. It starts in seconds, so that what
concerns the gateway can be tried again and again; what an engine or a trainer does of an attack it cannot show.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import zlib
from pathlib import Path

import httpx

from serve_apps.http.gateway.sources import Sources
from slime_events.model.progress import Progress, StepLine
from tests.gateway.test_live import gateway
from tests.harness.attacks.places import CONTEXT
from tests.harness.attacks.program import BODY
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import Watching, run_with, tiny
from tests.scripted_engine import Script

HARNESSES = 2
SCRIPT = Script(chunk=2, seconds_per_chunk=0.05)


class Saying(Watching):
    """Print each step, as the command does."""

    def step(self, line: StepLine, progress: Progress, steps: int) -> None:
        print(f"step {progress.state.version}/{steps}", flush=True)


async def _work(client: httpx.AsyncClient, token: str) -> None:
    """Run sessions with one plain question each, again and again: the work that attacks disturb."""
    while True:
        try:
            headers = {"authorization": f"Bearer {token}"}
            opened = await client.post("/v1/runs/attacked/sessions", json={"wait_s": 10}, headers=headers)
            if opened.status_code != 201:
                await asyncio.sleep(0.5)
                continue
            session = opened.json()
            answer = await client.post(f"{session['base_url']}/chat/completions", json=BODY)
            control = {"authorization": f"Bearer {session['control_key']}"}
            seal = {"reward": zlib.crc32(answer.content) % 5 / 4}
            await client.post(f"/v1/sessions/{session['session']}/seal", json=seal, headers=control)
        except httpx.HTTPError:
            await asyncio.sleep(0.5)


async def serve(folder: Path, port: int) -> None:
    """Run until interrupted."""
    settings = tiny(
        folder,
        "attacked",
        run={"runs_dir": str(folder)},
        rollout={
            "num_rollout": 100_000,
            "rollout_batch_size": 2,
            "n_samples_per_prompt": 2,
            "agents": True,
            "max_staleness": 1,
            "rollout_max_response_len": 16,
            "rollout_max_context_len": CONTEXT,
        },
        engine={"sglang": {"tool_call_parser": "qwen", "grammar_backend": "xgrammar"}},
        agents={"agent_turns_per_minute": 100_000},
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: os.kill(os.getpid(), signal.SIGTERM))

    async def agents(view: Watching) -> None:
        await view.until(lambda progress: progress.state.version >= 0)
        with gateway(folder / "attacked", port):
            token = Sources(folder / "attacked").issue("harness")
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
                await asyncio.gather(*(_work(client, token) for _ in range(HARNESSES)))

    with cheap_parts(Parts(script=SCRIPT)):
        await run_with(settings, agents, view=Saying())


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
