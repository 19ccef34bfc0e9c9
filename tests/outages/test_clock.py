"""The machine's clock is set by an hour, forth or back, in the middle of a run: nobody decides by it."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from pathlib import Path

import pytest

from schemas.archives import ArchiveSealed
from schemas.runs import RunFinished
from slime_events.app.cli.main import main
from slime_events.model.verify import verify
from storage.archive.reader import ArchiveReader
from storage.open_log import open_run_log
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import Watching, events_of, of, run_with, tiny

STEPS = 12
"""Enough for several segments after the clock was set, which happens some steps late on a busy machine."""
HOUR_S = 3600


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_set_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hours: int
) -> None:
    digests, folder = [], tmp_path / "runs" / "set"

    async def step(view: Watching) -> None:
        await view.until(lambda p: p.state.version >= 1 and p.in_flight > 0)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * HOUR_S * 10**9)
        monkeypatch.setattr(time, "time", lambda: real() + hours * HOUR_S)

    real_ns, real = time.time_ns, time.time
    view = Watching()
    for name, actions in (("straight", ()), ("set", (step,))):
        settings = tiny(
            tmp_path,
            name,
            rollout={"num_rollout": STEPS},
            run={"runs_dir": str(tmp_path / "runs"), "archive_seconds": 0.2},
        )
        with cheap_parts(Parts()):
            digests.append(asyncio.run(run_with(settings, *actions, view=view))["weights_digest"])
    assert digests[0] == digests[1]
    events = events_of(folder)
    times = [recorded.envelope.at for recorded in events]
    assert len(of(events, RunFinished)) == 1
    assert ArchiveReader(str(folder / "archive"), "set").closed
    set_at = next(i for i, (a, b) in enumerate(itertools.pairwise(times)) if abs(b - a) > 0.9 * HOUR_S * 10**9)
    assert of(events[set_at:], ArchiveSealed)[1:], "segments are sealed in their time"

    async def fold() -> None:
        async with open_run_log(folder, "set") as log:
            await verify(log)

    asyncio.run(fold())
    for words in (["show"], ["show", "--step", "1"], ["audit"]):
        assert main([words[0], str(folder), *words[1:]]) == 0
    assert re.findall(r"(?<![\w-])-\d", capsys.readouterr().out) == [], "no figure is below nothing"
    summary = json.loads((folder / "summary.json").read_text())
    assert min(summary["seconds"], summary["seconds_per_step"], summary["seconds_total"]) >= 0
    assert summary["seconds_total"] < HOUR_S, "by a clock that nobody sets"
