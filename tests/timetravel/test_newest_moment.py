"""The newest moment of a growing log is the fold of the whole log, whenever it was read before."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slime_events.analysis.timetravel.moment import Moment
from slime_events.analysis.timetravel.moment_view import MomentView, view_moment
from slime_events.analysis.timetravel.newest_moment import NewestMoment
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.run import RunState
from slime_events.model.run_status import RunStatus
from storage.log import Append
from storage.memory_log import MemoryLog
from tests import made
from tests.cli.small_run import RUN, appends, events, recorded

LOG = appends(events())
RECORDS = recorded(events())
END = 20


async def _status(_: OpenedRun) -> RunStatus:
    return RunStatus.RUNNING


def _folded(count: int) -> MomentView:
    moment = Moment(RunState(run=RUN))
    for record in RECORDS[:count]:
        moment.apply(record)
    return view_moment(moment, count)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, len(LOG)), min_size=1, unique=True).map(sorted))
async def test_it_is_the_fold_of_the_whole_log(ends: list[int]) -> None:
    log, begin = MemoryLog(RUN), 0
    newest = NewestMoment(made.opened(log))
    for end in ends:
        await log.append(LOG[begin:end])
        begin = end
        for _ in range(2):  # also without a new event
            moment = await newest.read(_status)
            assert moment.view == _folded(end)
            assert moment.last is not None
            assert moment.last.position == end


class _Replaced(MemoryLog):
    """A log whose records may be replaced by those of another one."""

    def replace(self, other: MemoryLog) -> None:
        self.__dict__.update(other.__dict__)


async def test_another_history_is_read_from_its_beginning() -> None:
    log, other = _Replaced(RUN), MemoryLog(RUN)
    newest = NewestMoment(made.opened(log))
    await log.append(LOG[:END])
    await newest.read(_status)
    await other.append([Append(replace(append.envelope, producer="another")) for append in LOG])
    log.replace(other)
    moment = Moment(RunState(run=RUN))
    async for record in log.read():
        moment.apply(record)
    assert (await newest.read(_status)).view == view_moment(moment, len(LOG))


async def test_a_run_whose_launcher_is_gone_says_so() -> None:
    run = made.opened(MemoryLog(RUN))
    await run.log.append(LOG[:-1])

    async def killed(_: OpenedRun) -> RunStatus:
        return RunStatus.KILLED

    newest = NewestMoment(run)
    assert (await newest.read(killed)).view.phase == RunStatus.KILLED
    assert (await newest.read(_status)).view.phase == "running"
