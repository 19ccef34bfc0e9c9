"""A session whose rollout the run asks for again, before it is sealed or in the midst of that; and what ended turns
leave behind.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from schemas.event import Event, Purpose
from schemas.ids import sample_id, turn_group_id
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutRequested
from schemas.sessions import SessionOpened, SessionSealed
from schemas.subjects import about
from schemas.turns import TurnRecorded
from slime_events.core.run.participant import Participant
from storage.follow import Follower
from storage.log import Append
from storage.memory_log import MemoryLog
from tests.agents.lone_session import SAMPLE, LoneSession
from tests.agents.stage import ASKED, ask, seal, state

ANSWER = 4


class Log(MemoryLog):
    """Have `first` in the log before the next seal, from any gateway."""

    first: Event | None = None

    async def append(self, appends: Sequence[Append]) -> list[int]:
        if self.first is not None and any(isinstance(append.envelope.event, SessionSealed) for append in appends):
            first, self.first = self.first, None
            await Participant(self, "conductor").append_fenced(first)
        return await super().append(appends)

    def of(self, kind: type[Any]) -> list[Any]:
        """Its events of this type that are about the session's rollout."""
        events = [record.envelope.event for record in self.records]
        return [event for event in events if isinstance(event, kind) and event.sample == SAMPLE]

    def requested_again(self) -> RolloutRequested:
        (request,) = self.of(RolloutRequested)
        return replace(request, attempt=1)


class Scene:
    """A session of one turn. again: the run asks for its rollout again now."""

    def __init__(self, lone: LoneSession, log: Log, client: httpx.AsyncClient, session: dict[str, Any]) -> None:
        self.lone, self.log, self.client, self.session = lone, log, client, session

    async def again(self) -> None:
        await Participant(self.log, "conductor").append_fenced(self.log.requested_again())


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    log = Log("lone")
    lone = LoneSession(log, tmp_path, ANSWER)
    await lone.begin()
    async with lone.engine(), lone.gateway() as client:
        session = await lone.open(client)
        await ask(client, session, ASKED)
        yield Scene(lone, log, client, session)


@pytest.mark.parametrize("knows", [True, False])
async def test_a_session_that_was_given_up_is_not_sealed(scene: Scene, knows: bool) -> None:
    """Seal nothing, neither by the gateway that has the session in memory nor by one that reads it for the
    first time.
    """
    await scene.again()
    async with scene.lone.gateway() as another:
        gateway = scene.client if knows else another
        assert (await seal(gateway, scene.session, reward=1.0)).status_code == 409
        assert (await state(gateway, scene.session))["turns"] != []
        body = {"model": "m", "messages": ASKED}
        assert (await gateway.post(f"{scene.session['base_url']}/chat/completions", json=body)).status_code in (
            404,
            409,
        )
    assert scene.log.of(SessionSealed) == scene.log.of(RolloutCompleted) == scene.log.of(RolloutFailed) == []


async def test_the_next_session_of_its_rollout_is_its_own(scene: Scene) -> None:
    await scene.again()
    headers = {"authorization": f"Bearer {scene.lone._token}", "idempotency-key": "two"}
    answer = await scene.client.post("/v1/runs/lone/sessions", json={"wait_s": 10}, headers=headers)
    second = dict(answer.json())
    assert [(event.attempt, event.key) for event in scene.log.of(SessionOpened)] == [(0, "one"), (1, "two")]
    await ask(scene.client, second, ASKED)
    assert (await seal(scene.client, scene.session, reward=0.0)).status_code == 409
    assert (await seal(scene.client, second, reward=1.0)).status_code == 200
    (sealed,) = scene.log.of(SessionSealed)
    assert (sealed.attempt, sealed.reward, sealed.turns) == (1, 1.0, 1)


async def test_a_session_that_is_given_up_in_the_midst_of_its_seal_is_not_sealed(scene: Scene) -> None:
    scene.log.first = scene.log.requested_again()
    assert (await seal(scene.client, scene.session, reward=1.0)).status_code == 409
    assert (scene.log.of(SessionSealed), scene.log.of(RolloutCompleted)) == ([], [])


async def test_what_comes_amid_a_seal_is_read_before_it_is_tried_again(scene: Scene) -> None:
    """Another gateway's turn, say: the seal is of the session as it is then."""
    scene.log.first = scene.log.of(SessionOpened)[0]
    assert (await seal(scene.client, scene.session, reward=1.0)).status_code == 200
    assert len(scene.log.of(SessionSealed)) == 1


async def test_turns_that_have_ended_are_held_by_nobody(scene: Scene) -> None:
    """A gateway makes turns for days."""
    seen = weakref.WeakSet[asyncio.Task[Any]]()

    async def held_after(turns: int) -> int:
        """Tasks that have ended and are held, of all that there were."""
        for number in range(turns):
            chat = [*ASKED, {"role": "user", "content": f"and {number}?"}]
            asking = asyncio.create_task(ask(scene.client, scene.session, chat))
            while not asking.done():
                seen.update(asyncio.all_tasks())
                await asyncio.sleep(0.001)
            await asking
            del asking
        await asyncio.sleep(0.01)
        gc.collect()
        return sum(task.done() for task in seen)

    held = await held_after(2)
    assert await held_after(10) < held + 5, "some may be on their way out"
    assert sum(call.purpose is Purpose.CALL for call in _calls(scene.log)) == 13


async def opened(log: Log, folder: Path) -> tuple[LoneSession, str]:
    """A session without an engine, and its address."""
    lone = LoneSession(log, folder, ANSWER)
    await lone.begin()
    async with lone.engine(), lone.gateway() as client:
        session = await lone.open(client)
    return lone, session["base_url"]


async def begun_turn(log: Log, client: httpx.AsyncClient, url: str) -> asyncio.Task[httpx.Response]:
    """A turn that waits for an engine: its request is in the log."""
    body = {"model": "m", "messages": ASKED}
    asking = asyncio.create_task(client.post(f"{url}/chat/completions", json=body))
    requested = about(log.run, "rollout", sample_id(turn_group_id(SAMPLE, 0), 0))
    async with Follower(log, 1, requested) as follower:
        assert len(await follower.next(10.0)) == 1
    return asking


async def test_nothing_goes_on_behind_a_gateway_that_has_ended(tmp_path: Path) -> None:
    """Leave turns under way to another gateway, even if a client still waits here."""
    log = Log("lone")
    lone, url = await opened(log, tmp_path)
    before = asyncio.all_tasks()
    async with lone.gateway() as client:
        asking = await begun_turn(log, client, url)
        assert not asking.done()
    asking.cancel()
    await asyncio.wait([asking])
    assert asyncio.all_tasks() - before == set()


async def test_a_turn_of_a_session_that_is_given_up_meanwhile_is_not_recorded(tmp_path: Path) -> None:
    """Its tokens would be those of the next attempt."""
    log = Log("lone")
    lone, url = await opened(log, tmp_path)
    async with lone.gateway() as client:
        asking = await begun_turn(log, client, url)
        await Participant(log, "conductor").append_fenced(log.requested_again())
        async with lone.engine():
            assert (await asking).status_code == 409
    assert log.of(TurnRecorded) == []


def _calls(log: Log) -> list[RolloutRequested]:
    events = [record.envelope.event for record in log.records]
    return [event for event in events if isinstance(event, RolloutRequested)]
