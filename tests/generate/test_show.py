"""`show` of a rollout that has turns, and of one that became several samples."""

from __future__ import annotations

from pathlib import Path

from schemas.arrays import unpack
from slime_events.analysis.views.sample import view_sample
from slime_events.app.cli.commands.show_sample import sample_text
from slime_events.core.tokens.trajectory import read_trajectory
from slime_events.model.lookup import Lookup
from tests.generate.scene import a_run


async def shown(folder: Path, function: str, name: str) -> str:
    run = a_run(folder, function)
    await run.run()
    lookup = Lookup(run.log)
    sample = await lookup.sample(name)
    return sample_text(view_sample(lookup.run, sample, await read_trajectory(run.log, sample.sample, unpack)))


async def test_turns_are_shown_with_what_was_called_and_answered(tmp_path: Path) -> None:
    text = await shown(tmp_path, "two_turns", "train-0-000000-s0")
    lines = text.splitlines()
    (tool,) = [line.split() for line in lines if "look_up" in line]
    assert tool[:2] == ["1", "tool"]
    assert [line.split()[1] for line in lines if line.strip().startswith(("0 ", "2 "))][:2] == [
        "assistant",
        "assistant",
    ]
    masked = [line.split() for line in lines if line.rstrip().endswith("no")]
    assert masked
    assert all(row[-2] == "-" for row in masked), "what a tool said was made by no weights"


async def test_a_further_sample_is_found(tmp_path: Path) -> None:
    text = await shown(tmp_path, "fan_out", "train-0-000000-s0-2")
    assert "train-0-000000-s0-2" in text
    assert "requested" in text
    assert "trained in  step 0" in text
