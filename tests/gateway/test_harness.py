"""`Harness` over a gateway that is killed, is off, loses an answer or is over; and over its own death."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import slime_events
from schemas.errors import AccessDenied, InvalidValue, LogUnavailable, RunNotFound
from schemas.rollouts import RolloutFailed
from schemas.runs import FinishReason
from schemas.sessions import SealReason, SessionOpened, SessionSealed
from serve_apps.http.gateway.sources import Scope
from slime_events import Harness, HarnessSession
from slime_events.app import harness as module
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase
from slime_events.plugins.loader import load_function
from storage.nats.ports import free_port
from tests import made
from tests.agents.stage import Stage
from tests.docs.pages import DOCS, ROOT
from tests.scripted_engine import Script

SOON_S = 30.0
"""Nothing here waits for longer."""


class Losing(httpx.HTTPTransport):
    """The answers of the first requests to such paths are lost on their way back."""

    def __init__(self, *ends: str) -> None:
        super().__init__()
        self._ends = list(ends)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        for end in self._ends:
            if request.url.path.endswith(end):
                self._ends.remove(end)
                answer.close()
                raise httpx.ReadError("the connection was cut")
        return answer


class Scene:
    """A stage, and harnesses in threads."""

    def __init__(self, folder: Path, **plan: Any) -> None:
        self.stage, self.port = Stage(folder, **plan), free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def harness(self, **more: Any) -> Harness:
        return Harness(self.url, "sim", self.stage.token, **more)

    async def end(self, reason: FinishReason = FinishReason.ALL_STEPS) -> None:
        over = made.finished(reason, steps=0)
        await Participant(self.stage.simulation.log, "conductor").append_fenced(over)

    def sealed(self) -> list[SessionSealed]:
        return self.stage.simulation.events(SessionSealed)


async def thread(work: Callable[[], Any]) -> Any:
    async with asyncio.timeout(SOON_S):
        return await asyncio.to_thread(work)


def ask(session: HarnessSession) -> None:
    """Ask as the docs do."""
    with openai.OpenAI(base_url=session.base_url, api_key="none", max_retries=8) as agent:
        messages: list[Any] = session.prompt if isinstance(session.prompt, list) else [_user(session.prompt)]
        agent.chat.completions.create(model="default", messages=messages)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_a_harness_makes_a_run_and_ends_with_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    def work() -> int:
        with scene.harness() as harness:
            number = 0
            for session in harness.sessions():
                ask(session)
                assert session.seal(reward=1.0) == (True, "")
                number += 1
            return number

    async with scene.stage.simulation, scene.stage.served(scene.port):
        scene.stage.simulation.start_engine(Script(chunk=8))
        working = asyncio.create_task(thread(work))
        assert await scene.stage.simulation.finish() is RunPhase.FINISHED
        assert await working == 4
    assert {event.reason for event in scene.sealed()} == {SealReason.REWARD}


def page_of(url: str, token: str) -> Callable[[], None]:
    """The code that docs/agents.md begins with, of a run that is called sim."""
    page = (DOCS / "agents.md").read_text(encoding="utf-8")
    code = next(
        block for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE) if "Harness" in block
    )
    assert '"http://127.0.0.1:8500", run="agents"' in code
    code = code.replace("http://127.0.0.1:8500", url).replace('run="agents"', 'run="sim"')
    return lambda: exec(code, {"TOKEN": token})


def example_of(url: str, token: str) -> Callable[[], None]:
    """examples/harness.py."""
    main = load_function("harness.py:main", user_dir=ROOT / "examples")
    return lambda: main(token, "sim", url)


@pytest.mark.parametrize("shown", [page_of, example_of])
async def test_what_is_shown_makes_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: Callable[[str, str], Callable[[], None]]
) -> None:
    monkeypatch.setattr(HarnessSession, "prompt", property(lambda session: [_user(session.opened.prompt)]))
    scene = Scene(tmp_path)
    async with scene.stage.simulation, scene.stage.served(scene.port):
        scene.stage.simulation.start_engine(Script(chunk=8))
        working = asyncio.create_task(thread(shown(scene.url, scene.stage.token)))
        assert await scene.stage.simulation.finish() is RunPhase.FINISHED
        await working
    assert {event.reason for event in scene.sealed()} == {SealReason.REWARD}


async def test_it_survives_a_gateway_that_is_away_and_one_that_is_killed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    opened, gone = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> Any:
        with scene.harness() as harness:
            session = harness.open()
            assert session is not None
            ask(session)
            loop.call_soon_threadsafe(opened.set)
            asyncio.run_coroutine_threadsafe(gone.wait(), loop).result(SOON_S)
            return session.seal(reward=1.0)

    async with scene.stage.simulation:
        scene.stage.simulation.start_engine(Script(chunk=8))
        working = asyncio.create_task(thread(work))
        await asyncio.sleep(0.6)  # connections are refused
        async with scene.stage.served(scene.port):
            await opened.wait()
        gone.set()
        await asyncio.sleep(0.6)
        scene.stage.is_on = False  # and then the run is not on: 503, with Retry-After
        async with scene.stage.served(scene.port):
            await asyncio.sleep(1.0)
            scene.stage.is_on = True
            assert await working == (True, "")
    (sealed,) = scene.sealed()
    assert sealed.reason is SealReason.REWARD


async def test_answers_that_are_lost_are_asked_for_again(tmp_path: Path) -> None:
    """A session is opened once, and sealed once."""
    scene = Scene(tmp_path)

    def work() -> Any:
        with scene.harness(transport=Losing("/sessions", "/seal")) as harness:
            session = harness.open()
            assert session is not None
            ask(session)
            return session.seal(reward=1.0), session.seal(reward=1.0)

    async with scene.stage.simulation, scene.stage.served(scene.port):
        scene.stage.simulation.start_engine(Script(chunk=8))
        assert await thread(work) == ((True, ""), (True, ""))
    assert len(scene.stage.simulation.events(SessionOpened)) == len(scene.sealed()) == 1


@pytest.mark.parametrize("name", ["worker", ""], ids=["by-name", "by-process"])
async def test_the_next_harness_finds_what_a_lost_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Seal the sessions that the lost harness began, open the others, and leave those of other harnesses alone."""
    scene, ended = Scene(tmp_path, samples=3), await asyncio.create_subprocess_exec("true")
    await ended.wait()

    def lose() -> list[str]:
        monkeypatch.setattr(module, "_PROCESS", f"{module.socket.gethostname()}:{ended.pid}:first")
        lost = scene.harness(name=name)
        begun, unused = lost.open(), lost.open()
        monkeypatch.setattr(module, "_PROCESS", f"{module.socket.gethostname()}:{os.getpid()}:second")
        other = scene.harness(name="another" if name else "").open()
        assert begun is not None
        assert unused is not None
        assert other is not None
        ask(begun)
        return [begun.name, unused.name, other.name]

    def find() -> HarnessSession:
        with scene.harness(name=name) as harness:
            session = next(harness.sessions())
            ask(session)
            assert session.seal(reward=1.0).is_trained
            return session

    async with scene.stage.simulation, scene.stage.served(scene.port):
        scene.stage.simulation.start_engine(Script(chunk=8))
        begun, unused, other = await thread(lose)
        assert (await thread(find)).name == unused
        failed = await scene.stage.simulation.until(RolloutFailed)
    assert "harness was lost" in failed[0].message
    by_name = {f"{event.sample}.{event.attempt}": event.reason for event in scene.sealed()}
    assert (by_name[begun], by_name[unused], other in by_name) == (SealReason.EXIT, SealReason.REWARD, False)


async def test_an_exception_fails_the_session_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, samples=3)

    def within() -> None:
        with scene.harness() as harness, next(harness.sessions()):
            raise KeyError("a tool")

    def beside() -> None:
        with scene.harness() as harness:
            for _ in harness.sessions():
                raise KeyError("another tool")

    def without() -> None:
        with scene.harness() as harness, next(harness.sessions()) as session:
            ask(session)

    async with scene.stage.simulation, scene.stage.served(scene.port):
        scene.stage.simulation.start_engine(Script(chunk=8))
        for work in (within, beside):
            with pytest.raises(KeyError):
                await thread(work)
        await thread(without)
    failed = [event.message for event in scene.stage.simulation.events(RolloutFailed)]
    assert ["KeyError: 'a tool'" in failed[0], "KeyError: 'another tool'" in failed[1]] == [True, True]
    assert [event.exit_code for event in scene.sealed()] == [1, 1, 0]


async def test_a_seal_that_trains_on_nothing_says_so(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    def work() -> Any:
        with scene.harness() as harness:
            session = harness.open()
            assert session is not None
            with pytest.raises(InvalidValue):
                session.seal(reward=1.0, rewards={7: 1.0})
            return session.seal(reward=1.0)

    async with scene.stage.simulation, scene.stage.served(scene.port):
        scene.stage.simulation.start_engine(Script(chunk=8))
        result = await thread(work)
    assert not result.is_trained
    assert "has no completed turn" in result.why_not


@pytest.mark.parametrize("is_on", [True, False], ids=["gateway-of-the-run", "gateway-beside-it"])
async def test_nothing_waits_for_a_run_that_is_over(tmp_path: Path, is_on: bool) -> None:
    scene = Scene(tmp_path)

    def work() -> tuple[int, slime_events.HarnessSession | None]:
        with scene.harness(name="late") as harness:
            return len(list(harness.sessions())), harness.open()

    async with scene.stage.simulation, scene.stage.served(scene.port):
        scene.stage.simulation.start_engine(Script(chunk=8))
        before = await thread(scene.harness(name="late").open)
        await scene.end()
        scene.stage.is_on, began = is_on, time.monotonic()
        assert await thread(work) == (0, None)
        late = await thread(lambda: before.seal(reward=1.0))
    assert not late.is_trained
    assert time.monotonic() - began < SOON_S / 3


async def test_it_waits_for_a_run_that_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For `resume_s`, and no longer for one of which nothing is known."""
    monkeypatch.setattr("serve_apps.http.gateway.open_sessions.RESUME_S", 1)
    scene = Scene(tmp_path)
    async with scene.stage.simulation:
        scene.stage.simulation.start_engine(Script(chunk=8))
        async with scene.stage.served(scene.port):
            session = await thread(scene.harness(wait_s=0.2).open)
            await thread(lambda: ask(session))
            await scene.end(FinishReason.INTERRUPTED)
            scene.stage.is_on = False
            sealing = asyncio.create_task(thread(lambda: session.seal(reward=1.0)))
            await asyncio.sleep(1.0)
        await asyncio.sleep(1.0)  # its gateway is gone too
        assert not sealing.done()
        await Participant(scene.stage.simulation.log, "launcher").append_fenced(made.resumed())
        scene.stage.is_on = True
        async with scene.stage.served(scene.port):
            assert (await sealing).is_trained
        with pytest.raises(LogUnavailable):
            await thread(scene.harness(wait_s=0.2).open)


async def test_what_it_may_not_is_an_error_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    prompts = scene.stage.sources.issue("quiz", [Scope.PROMPTS])
    async with scene.stage.simulation, scene.stage.served(scene.port):
        for token, run, error in (
            ("none", "sim", AccessDenied),
            (prompts, "sim", AccessDenied),
            (scene.stage.token, "other", RunNotFound),
        ):
            with pytest.raises(error):
                await thread(Harness(scene.url, run, token).open)
    with pytest.raises(InvalidValue):
        scene.harness(name="a:b")
