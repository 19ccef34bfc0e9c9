"""The same run as a command whose processes are killed: the launcher alone, then every one. It goes on to the same
weights, and nothing of it stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import SlimeEventsError
from schemas.rollouts import RolloutRequested
from schemas.runs import RunFinished, RunResumed
from schemas.weights import WeightsPublished
from slime_events.config.toml import to_toml
from slime_events.state.apply import apply
from slime_events.state.run import RunPhase, RunState
from storage.connect import open_run_log
from storage.follow import Follower
from tests.run.test_engine_lost import _running
from tests.run.tiny import MARK, events_of, left_behind, marked, of
from tests.run.whole import Finished, whole_settings

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

STEPS = 2
DEADLINE_S = 120.0


def start(*words: str) -> subprocess.Popen[bytes]:
    """A command in a session of its own."""
    command = [sys.executable, "-m", "slime_events.cli.main", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


async def reaches(folder: Path, incarnation: int, holds: Callable[[RunState], bool]) -> None:
    """Wait until something new is said in this incarnation of the run, in a state that `holds` is true of."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await _follow(folder, incarnation, holds):
                return
            await asyncio.sleep(0.2)


async def _follow(folder: Path, incarnation: int, holds: Callable[[RunState], bool]) -> bool:
    """False where the run is just starting, and its log does not answer yet."""
    with contextlib.suppress(SlimeEventsError):
        async with open_run_log(folder) as log, Follower(log) as follower:
            state, lives = RunState(run=log.run), 0
            while True:
                for recorded in await follower.next(1.0):
                    apply(state, recorded)
                    lives += isinstance(recorded.envelope.event, RunResumed)
                    if lives == incarnation and not follower.is_history(recorded):
                        if holds(state):
                            return True
                        assert state.phase is RunPhase.RUNNING, f"{state.phase}: {state.failure}"
    return False


def test_a_killed_run_goes_on_to_the_same_weights(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    settings = tmp_path / "settings.toml"
    settings.write_text(to_toml(whole_settings(tmp_path, "whole", STEPS, chunk_tokens=4)))
    folder = tmp_path / "runs" / "whole"
    resume = ["resume", "whole", "--runs-dir", str(tmp_path / "runs")]

    launcher = start("train", "--config", str(settings), "--plain")
    asyncio.run(reaches(folder, 0, lambda state: state.published == 0 and _running(state) > 4))
    second = subprocess.run([sys.executable, "-m", "slime_events.cli.main", *resume], capture_output=True, text=True)
    assert (second.returncode, second.stderr.count("\n")) == (2, 1)
    assert "is on: there is nothing to resume" in second.stderr
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()

    launcher = start(*resume)
    asyncio.run(reaches(folder, 1, lambda state: state.version == 1 and _running(state) > 4))
    for process in marked(mark):
        process.kill()
    launcher.wait()

    launcher = start(*resume)
    _, said = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == 0, said.decode()
    assert left_behind(mark) == []
    events = events_of(folder)
    expected = {one.version: one.digest for one in of(finished.events, WeightsPublished) if one.version <= STEPS}
    assert {one.version: one.digest for one in of(events, WeightsPublished)} == expected
    assert [one.incarnation for one in of(events, RunResumed)] == [1, 2]
    assert len(of(events, RunFinished)) == 1
    requests = [one.sample for one in of(events, RolloutRequested)]
    assert len(requests) == len(set(requests)), "nothing was asked for twice"
    assert json.loads((folder / "summary.json").read_text())["steps"] == STEPS


def test_sigterm_during_the_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    settings = tmp_path / "settings.toml"
    settings.write_text(to_toml(whole_settings(tmp_path, "whole", STEPS, chunk_tokens=4)))
    launcher = start("train", "--config", str(settings), "--plain")
    server = tmp_path / "runs" / "whole" / "nats" / "server.json"
    until = time.monotonic() + DEADLINE_S
    while not server.exists() and time.monotonic() < until:
        time.sleep(0.05)
    launcher.terminate()
    _, said = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == 130, said.decode()
    assert "slime-events resume whole" in said.decode()
    assert left_behind(mark) == []
