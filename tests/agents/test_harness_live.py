"""`Harness` beside a run with a real NATS server: its gateway is killed, the run interrupted and resumed, a seal lost,
and the harness itself replaced. It waits for none of them longer than it has to.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from schemas.rollouts import Maker, RolloutRequested
from schemas.runs import FinishReason, RunFinished
from schemas.sessions import SealReason, SessionOpened, SessionSealed
from schemas.turns import TurnRecorded
from serve_apps.http.gateway.sources import Sources
from slime_events import Harness
from storage.nats.ports import free_port
from tests.cli.invoke import command
from tests.gateway.test_harness import Losing
from tests.gateway.test_live import gateway
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import Watching, events_of, of, run_with, tiny
from tests.scripted_engine import Script

RUN, STEPS, THREADS = "agents", 3, 4
ENDED_S = 60.0
"""After the run's end, for the harness to end too."""


class Worker:
    """A harness of as many lines as the docs show, in threads. seals: whose answers are lost."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token
        self.sealed = list[str]()
        self.failures: list[BaseException] = []
        self._threads = list[threading.Thread]()

    def start(self, transport: httpx.BaseTransport | None = None) -> None:
        harness = Harness(self._url, RUN, self._token, name="worker", transport=transport)
        self._threads = [threading.Thread(target=self._work, args=(harness,), daemon=True) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _work(self, harness: Harness) -> None:
        try:
            for session in harness.sessions():
                with contextlib.suppress(openai.OpenAIError), session:
                    with openai.OpenAI(base_url=session.base_url, api_key="none", max_retries=20) as agent:
                        agent.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
                    if session.seal(reward=1.0).is_trained:
                        self.sealed.append(session.name)
        except BaseException as error:
            self.failures.append(error)
            raise

    def join(self, seconds: float) -> float:
        """Return how long the threads took to end."""
        began = time.monotonic()
        for waiting in self._threads:
            waiting.join(max(0.0, began + seconds - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), "a thread waits for a run that is over"
        return time.monotonic() - began


@contextlib.contextmanager
def killed_gateways(run: Path, port: int, every_s: float, kills: int) -> Iterator[None]:
    """One, and another after each kill -9, until the end of the block. A resumed run ends what the process of its
    launcher had started, which here is the gateway too: then there is another one.
    """
    is_over = threading.Event()

    def serve() -> None:
        for number in itertools.count():
            end = time.monotonic() + (every_s if number < kills else math.inf)
            with gateway(run, port) as process:
                while process.poll() is None and time.monotonic() < end:
                    if is_over.wait(0.2):
                        return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def leave_open(url: str, token: str) -> str:
    """A session whose harness says nothing more."""
    lost = Harness(url, RUN, token, name="worker")
    session = lost.open()
    assert session is not None
    lost.close()
    return session.name


def test_a_harness_survives_gateway_run_and_seal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, port = tmp_path / "runs" / RUN, free_port()
    url = f"http://127.0.0.1:{port}"
    rollout = {
        "num_rollout": STEPS,
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "agents": True,
        "rollout_max_response_len": 8,
    }
    workers: list[Worker] = []
    left: list[str] = []
    with contextlib.ExitStack() as stack:

        async def work(view: Watching) -> None:
            await view.until(lambda progress: progress.state.version >= 0)
            workers.append(worker := Worker(url, Sources(run).issue("team")))
            stack.enter_context(killed_gateways(run, port, 5.0, 2))
            left.append(await asyncio.to_thread(leave_open, url, worker._token))
            worker.start(Losing("/seal", "/sessions", "/seal"))
            await view.until(lambda progress: progress.state.version >= 1)
            os.kill(os.getpid(), signal.SIGINT)

        script = Script(chunk=2, seconds_per_chunk=0.05)
        with cheap_parts(Parts(script=script)):
            asyncio.run(run_with(tiny(tmp_path, RUN, rollout=rollout), work))
        time.sleep(3.0)  # the harness asks on meanwhile
        with cheap_parts(Parts(script=script)):
            assert command("resume")([RUN, "--runs-dir", str(tmp_path / "runs"), "--plain"]) == 0
        took_s = workers[0].join(ENDED_S)
    assert workers[0].failures == []
    print(f"the harness ended {took_s:.1f} s after the run; {len(workers[0].sealed)} sessions")
    events = events_of(run)
    assert [event.reason for event in of(events, RunFinished)] == [FinishReason.INTERRUPTED, FinishReason.ALL_STEPS]
    by_name = {f"{event.sample}.{event.attempt}": event.reason for event in of(events, SessionSealed)}
    assert {by_name[name] for name in workers[0].sealed} == {SealReason.REWARD}
    assert len(workers[0].sealed) == len(set(workers[0].sealed)) >= STEPS * 4
    assert by_name[left[0]] is SealReason.REWARD, "the next harness found it"
    assert len(of(events, SessionOpened)) <= len(
        [event for event in of(events, RolloutRequested) if event.maker is Maker.AGENT]
    )
    assert len(of(events, TurnRecorded)) >= STEPS * 4
    assert command("audit")([str(run)]) == 0, capsys.readouterr().out
