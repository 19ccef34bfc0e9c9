"""Test the list of open sessions, over a log in memory: whose, in which order, page by page, and how old each is."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from schemas.rollouts import Maker
from schemas.runs import FinishReason, RunFailed
from schemas.sessions import SealReason, SessionOpened, SessionSealed
from schemas.turns import TurnBegun, TurnRole
from serve_apps.http.gateway import open_sessions
from serve_apps.http.gateway.agents import Capability, SessionKeys
from serve_apps.http.gateway.open_sessions import OpenSessions
from serve_apps.http.gateway.refusals import Refused
from slime_events.core.run.participant import Participant
from storage.log import Append
from storage.memory_log import MemoryLog
from tests import made

KEYS = SessionKeys(b"secret")
BEGIN = made.started()


class Run:
    """Its log and what is listed of it."""

    def __init__(self) -> None:
        self._log = MemoryLog("sim")
        self._worker = Participant(self._log, "test")
        self.own = OpenSessions(self.log, KEYS)

    @contextlib.asynccontextmanager
    async def log(self) -> AsyncIterator[MemoryLog]:
        yield self._log

    async def say(self, *events: object) -> int:
        """The time of the last one, ns of Unix time."""
        at = 0
        for event in events:
            envelope = self._worker.enclose(event)  # type: ignore[arg-type]
            await self._log.append([Append(envelope)])
            at = envelope.at
        return at

    async def open(self, sample: str, sender: str = "team") -> int:
        group = sample.rpartition("-s")[0]
        request = made.requested(sample, index=0, max_new_tokens=4, maker=Maker.AGENT)
        opened = SessionOpened(sample=sample, attempt=0, group=group, sender=sender, key=f"key of {sample}")
        return await self.say(request, opened)

    async def names(self, sender: str = "team", after: str = "") -> tuple[list[str], str]:
        listed = await self.own.of(sender, after)
        return [session.session for session in listed.sessions], listed.next


@pytest.fixture
async def run() -> Run:
    run = Run()
    await run.say(BEGIN)
    return run


async def test_a_session_is_listed_with_its_keys_and_its_age(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_at = await run.open("g-s1")
    begun_at = await run.say(TurnBegun(sample="g-s1", index=0, role=TurnRole.ASSISTANT, asked="k", engine="e"))
    monkeypatch.setattr(open_sessions, "time", SimpleNamespace(time_ns=lambda: begun_at + 5 * 10**9))
    (session,) = (await run.own.of("team", "")).sessions
    assert (session.session, session.sample, session.group, session.attempt) == ("g-s1.0", "g-s1", "g", 0)
    assert (session.key, session.control_key) == ("key of g-s1", KEYS.of("g-s1.0", Capability.CONTROL))
    assert session.opened_at == pytest.approx(opened_at / 1e9)
    assert session.idle_s == 5.0
    assert (session.turns, session.under_way) == (0, 1)


async def test_a_source_s_own_that_are_open_are_listed_by_name(run: Run) -> None:
    for sample, sender in (("g-s2", "team"), ("g-s0", "team"), ("g-s1", "other"), ("g-s3", "team")):
        await run.open(sample, sender)
    await run.say(SessionSealed(sample="g-s3", attempt=0, reason=SealReason.EXIT, gateway="g"))
    assert await run.names() == (["g-s0.0", "g-s2.0"], "")
    assert await run.names("other") == (["g-s1.0"], "")
    assert await run.names("nobody") == ([], "")


async def test_pages_have_so_many_and_name_the_next(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_sessions, "PAGE", 2)
    for index in range(4):
        await run.open(f"g-s{index}")
    assert await run.names() == (["g-s0.0", "g-s1.0"], "g-s1.0")
    assert await run.names(after="g-s1.0") == (["g-s2.0", "g-s3.0"], ""), "a full page may be the last"
    assert await run.names(after="g-s0.0") == (["g-s1.0", "g-s2.0"], "g-s2.0")
    assert await run.names(after="g-s3.0") == ([], "")


async def test_whether_the_run_has_ended_is_told(run: Run) -> None:
    async def is_over() -> tuple[bool, bool]:
        listed = await run.own.of("team", "")
        return listed.over, listed.interrupted

    assert await is_over() == (False, False)
    await run.own.check_over()
    await run.say(made.finished(FinishReason.INTERRUPTED))
    assert await is_over() == (True, True)
    with pytest.raises(Refused) as error:
        await run.own.check_over()
    assert (error.value.status, error.value.headers) == (503, {"Retry-After": "30"})
    await run.say(made.resumed())
    assert await is_over() == (False, False)
    await run.own.check_over()
    await run.say(RunFailed(role="trainer", reason="lost"))
    assert await is_over() == (True, False)
    with pytest.raises(Refused) as error:
        await run.own.check_over()
    assert (error.value.status, error.value.headers) == (409, {})
