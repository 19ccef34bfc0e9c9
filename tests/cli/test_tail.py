"""`tail`: filters, the live end of a run, and lines without raw arrays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas.errors import InvalidValue
from schemas.registry import BY_TYPE
from slime_events.app.cli.render.event_line import _FIGURES, event_line
from slime_events.app.follow_events import EventFilter, check_types, events
from slime_events.model.json_values import plain_event
from storage.log import EventLog, Recorded
from tests.cli import small_run as run


async def _positions(log: EventLog, filter_: EventFilter, *, on: bool = False) -> list[str]:
    async def is_on() -> bool:
        return True

    return [r.envelope.type async for r in events(log, filter_, follow=is_on if on else None)]


async def test_filters_narrow_each_other() -> None:
    log = await run.small_run()
    assert len(await _positions(log, EventFilter())) == len(log.records)
    assert set(await _positions(log, EventFilter(types=("rollout", "step.committed")))) == {
        "rollout.requested", "rollout.progressed", "rollout.completed", "step.committed",
    }  # fmt: skip
    assert await _positions(log, EventFilter(sample="inbox-aa-s0")) == [
        "rollout.requested", "rollout.completed", "reward.assigned", "group.accepted", "batch.sealed",
    ]  # fmt: skip
    assert await _positions(log, EventFilter(types=("group",), group=run.REJECTED)) == ["group.rejected"]
    assert await _positions(log, EventFilter(types=("run",), start=2)) == ["run.finished"]


async def test_it_follows_a_run_to_its_end_and_then_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime_events.app.follow_events.QUIET_S", 0.05)
    appends = run.appends(run.finished(run.events()))
    log = await run.write([])
    await log.append(appends[:5])
    tailing = asyncio.create_task(_positions(log, EventFilter(types=("step", "run")), on=True))
    await asyncio.sleep(0.12)
    assert not tailing.done(), "silence alone is no end"
    await log.append(appends[5:])
    types = await asyncio.wait_for(tailing, 60)
    assert types == ["run.started", "step.committed", "step.committed", "run.finished"]


async def test_a_log_that_answers_slowly_is_followed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take silence as the end of a run that is over, but only after reading all that the log has."""
    monkeypatch.setattr("slime_events.app.follow_events.QUIET_S", 0.05)
    log = await run.small_run()
    read = log.read

    async def read_slowly(*where: Any, **how: Any) -> AsyncIterator[Recorded]:
        async for recorded in read(*where, **how):
            if recorded.position == 4:  # the next page
                await asyncio.sleep(0.3)
            yield recorded

    monkeypatch.setattr(log, "read", read_slowly)
    assert len(await asyncio.wait_for(_positions(log, EventFilter(), on=True), 60)) == len(log.records)


async def test_lines_and_json_have_no_raw_arrays() -> None:
    log = await run.small_run()
    for recorded in log.records:
        text = event_line(recorded)
        assert "\n" not in text
        assert "Array(" not in text
        assert f" {recorded.envelope.event.entity()}" in text
        json.dumps(plain_event(recorded))
    done = next(r for r in log.records if r.envelope.type == "rollout.completed")
    assert plain_event(done)["event"]["tokens"] == {"dtype": "int32", "n": 3}
    assert plain_event(done, full=True)["event"]["tokens"] == [10, 11, 12]


def test_every_event_has_its_figures() -> None:
    assert set(_FIGURES) == set(BY_TYPE)


def test_an_unknown_type_gets_the_nearest_names() -> None:
    with pytest.raises(InvalidValue, match=r"rollout\.completed"):
        check_types(["rollout.complete"])
