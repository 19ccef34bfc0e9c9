"""The sessions of a run's agents over its log as it is now: opened once, and anew with another log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.errors import ConfigError, LogUnavailable
from schemas.sessions import SealReason, SessionSealed
from schemas.subjects import everything_about
from serve_apps.http.gateway.agents import AgentDesk
from serve_apps.http.gateway.refusals import Refused
from serve_apps.rollouts.agents import run_log, sessions
from serve_apps.rollouts.agents.setup import AgentSetup
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.telemetry import Tracing
from storage.log import EventLog, Fence
from storage.memory_log import MemoryLog
from tests import made
from tests.agents.stage import RULES, setup
from tests.telemetry.collector import collecting


class Kept:
    """A context manager that knows where it is. of: what it was made with."""

    instances: list[Kept]

    def __init__(self, *of: Any, **more: Any) -> None:
        self.of, self.more, self.state = of, more, "new"
        self.instances.append(self)

    async def __aenter__(self) -> Kept:
        self.state = "open"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.state = "closed"


@pytest.fixture
def kept_by_kind(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Kept]]:
    kinds = {name: type(name, (Kept,), {"instances": []}) for name in ("RunLog", "Sessions")}
    monkeypatch.setattr(run_log, "RunLog", kinds["RunLog"])
    monkeypatch.setattr(sessions, "Sessions", kinds["Sessions"])
    return {name: kind.instances for name, kind in kinds.items()}  # type: ignore[attr-defined]


class Run:
    def __init__(self, engines: int = 1) -> None:
        self.log: MemoryLog | None = MemoryLog("sim")
        self.refuses, self.engines = False, engines

    async def events(self) -> MemoryLog:
        if self.log is None:
            raise LogUnavailable("off")
        return self.log

    async def setup(self, _: Any) -> Any:
        if self.refuses:
            raise ConfigError("its engines make them")
        return setup(replace(RULES, engines=self.engines))


async def test_sessions_are_opened_once_a_log(kept_by_kind: dict[str, list[Kept]]) -> None:
    run = Run()
    async with AgentDesk(run.events, run.setup) as desk:
        first: Any = await desk.sessions()
        assert await desk.sessions() is first
        assert len(kept_by_kind["RunLog"]) == 1
        run.log = MemoryLog("sim")
        second: Any = await desk.sessions()
        assert second is not first
        assert [entry.state for entry in kept_by_kind["Sessions"]] == ["closed", "open"]
        assert [entry.state for entry in kept_by_kind["RunLog"]] == ["closed", "open"]
        assert second.of[0] is kept_by_kind["RunLog"][1]
        assert kept_by_kind["RunLog"][1].of[0] is run.log
    assert [entry.state for kept in kept_by_kind.values() for entry in kept] == ["closed"] * 4


@pytest.mark.parametrize(("engines", "early"), [(1, True), (2, False)])
async def test_one_engine_is_told_early(kept_by_kind: dict[str, list[Kept]], engines: int, early: bool) -> None:
    run = Run(engines)
    async with AgentDesk(run.events, run.setup) as desk:
        await desk.sessions()
    assert kept_by_kind["RunLog"][0].more == {
        "attempts": RULES.attempts,
        "tells_early": early,
        "trace_share": 0.0,
    }


async def test_sessions_are_traced() -> None:
    """The gateway has a log of its own; the spans of its events are those that the log gives afterwards."""
    run = Run()
    assert run.log is not None

    async def traced_setup(_: EventLog) -> AgentSetup:
        return replace(setup(RULES), tracing=Tracing(collector.endpoint, 1.0))

    with collecting() as collector:
        async with AgentDesk(run.events, traced_setup) as desk:
            run_log = (await desk.sessions())._run_log
            turn = made.turn("g-s0", seconds=0.5)
            seal = SessionSealed(sample="g-s0", attempt=0, reason=SealReason.EXIT, gateway="w")
            recorded = await run_log.append([turn, seal], Fence(everything_about("sim", "g-s0"), 0))
    spans = filter(None, (span_of(record.envelope) for record in recorded))
    assert sorted(collector.ids) == sorted(tuple(span.context) for span in spans)


async def test_a_collector_that_cannot_be_used_refuses_no_session() -> None:
    run = Run()

    async def traced_setup(_: EventLog) -> AgentSetup:
        return replace(setup(RULES), tracing=Tracing("http://${NOT_SET_ANYWHERE}:4318", 1.0))

    async with AgentDesk(run.events, traced_setup) as desk:
        await desk.sessions()


async def test_a_run_without_agents_or_off_has_none(kept_by_kind: dict[str, list[Kept]]) -> None:
    run = Run()
    run.refuses = True
    async with AgentDesk(run.events, run.setup) as desk:
        for _ in range(2):
            with pytest.raises(Refused) as error:
                await desk.sessions()
            assert error.value.status == 404
        run.refuses, log, run.log = False, run.log, None
        with pytest.raises(LogUnavailable):
            await desk.sessions()
        run.log = log
        await desk.sessions()
    assert len(kept_by_kind["Sessions"]) == 1
