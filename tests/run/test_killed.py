"""Test the same run as a command whose processes are killed: every one, then the launcher alone. It reaches the same
weights, and nothing of it stays.
"""

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
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from schemas.errors import SlimeEventsError
from schemas.rollouts import RolloutRequested
from schemas.runs import RunFinished, RunResumed
from schemas.weights import WeightsPublished
from slime_events.core.config.toml import to_toml
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState
from storage.follow import Follower
from storage.nats.server import NatsServer
from storage.open_log import open_run_log
from tests.run.tiny import MARK, START_S, events_of, left_behind, marked, of, running
from tests.run.whole import Finished, whole_settings

pytestmark = pytest.mark.real

STEPS = 2


class Command:
    """`slime-events` in a session of its own; what it says goes to a file, which nobody has to read meanwhile."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._output = folder / f"said-{uuid.uuid4().hex}"
        with self._output.open("wb") as out:
            command = [sys.executable, "-m", "slime_events.app.cli.main", *words]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    @property
    def output_text(self) -> str:
        """All that it has said so far."""
        return self._output.read_text()

    def ends(self, deadline_s: float = START_S) -> int:
        """Its exit code."""
        return self.process.wait(deadline_s)

    async def reaches(self, folder: Path, incarnation: int, holds: Callable[[RunState], bool]) -> None:
        """Wait until this incarnation of the run has been in a state that `holds` is true of."""
        async with asyncio.timeout(START_S):
            while True:
                assert self.process.poll() is None, self.output_text
                if await _follow(folder, incarnation, holds):
                    return
                await asyncio.sleep(0.2)


async def _follow(folder: Path, incarnation: int, holds: Callable[[RunState], bool]) -> bool:
    """False where the run is just starting, or has said nothing for a while."""
    with contextlib.suppress(SlimeEventsError):
        async with open_run_log(folder) as log, Follower(log) as follower:
            state, lives = RunState(run=log.run), 0
            while events := await follower.next(5.0):
                for recorded in events:
                    apply(state, recorded)
                    lives += isinstance(recorded.envelope.event, RunResumed)
                    if lives == incarnation and holds(state):
                        return True
    return False


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the mark of everything that a test starts; nothing of it outlives the test."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield mark
    kill(mark)


def kill(mark: str) -> None:
    """SIGKILL to all that carries the mark."""
    for process in marked(mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_killed_run_goes_on_to_the_same_weights(finished: Finished, tmp_path: Path, mark: str) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(to_toml(whole_settings(tmp_path, "whole", STEPS, chunk_tokens=4)))
    folder = tmp_path / "runs" / "whole"
    resume = ["resume", "whole", "--runs-dir", str(tmp_path / "runs")]

    first = Command(tmp_path, "train", "--config", str(settings), "--plain")
    asyncio.run(first.reaches(folder, 0, lambda state: running(state) > 0))
    server = NatsServer.attach(folder / "nats")
    assert server is not None
    server.signal(signal.SIGSTOP)  # so that the run is still on when it is refused, and killed
    refused = Command(tmp_path, *resume)
    assert refused.ends() == 2
    assert "is running: there is nothing to resume" in refused.output_text
    kill(mark)
    first.ends()

    second = Command(tmp_path, *resume)
    asyncio.run(second.reaches(folder, 1, lambda state: bool(state.activated)))
    os.kill(second.process.pid, signal.SIGKILL)
    second.ends()

    third = Command(tmp_path, *resume)
    assert third.ends() == 0, third.output_text
    assert left_behind(mark) == []
    events = events_of(folder)
    expected = {
        event.version: event.digest for event in of(finished.events, WeightsPublished) if event.version <= STEPS
    }
    assert {event.version: event.digest for event in of(events, WeightsPublished)} == expected
    assert [event.incarnation for event in of(events, RunResumed)] in ([1, 2], [1]), "what is left may have ended it"
    assert len(of(events, RunFinished)) == 1
    requests = [event.sample for event in of(events, RolloutRequested)]
    assert len(requests) == len(set(requests)), "nothing was asked for twice"
    assert json.loads((folder / "summary.json").read_text())["steps"] == STEPS


def test_sigterm_during_the_start_leaves_nothing(tmp_path: Path, mark: str) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(to_toml(whole_settings(tmp_path, "whole", STEPS, chunk_tokens=4)))
    launcher = Command(tmp_path, "train", "--config", str(settings), "--plain")
    server = tmp_path / "runs" / "whole" / "nats" / "server.json"
    until = time.monotonic() + START_S
    while not server.exists() and time.monotonic() < until:
        time.sleep(0.05)
    launcher.process.terminate()
    assert launcher.ends() == 130, launcher.output_text
    assert "slime-events resume whole" in launcher.output_text
    assert left_behind(mark) == []
