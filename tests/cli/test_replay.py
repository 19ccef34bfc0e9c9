"""`slime-events replay`: exit codes, text and JSON, on an archive with nothing else left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.errors import UnknownFlag
from schemas.runs import RunStarted
from tests import made
from tests.cli.invoke import command
from tests.replay.golden import changed, golden

FILTER = """
def keep(args, samples, **kwargs):
    return max(sample.reward for sample in samples) > 0
"""

replay = command("replay")


@pytest.fixture
def archived(tmp_path: Path) -> str:
    more = {"reward": {"rm_type": "exact"}, "engine": {"hf_checkpoint": "/nowhere"}, "trainer": {"save": "s"}}
    records, _ = changed(golden("resting"), RunStarted, lambda event: {"settings": {**event.settings, **more}})
    return made.archived(tmp_path, records)


def test_a_clean_replay(archived: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay([archived, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["equal"], sum(facts["decisions"].values()), facts["events"]) == (True, 69, 178)
    assert facts["prompts"].startswith("16 taken as recorded")


def test_a_changed_filter(archived: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(FILTER)
    flags = ["--dynamic-sampling-filter-path", f"{tmp_path}/mine.py:keep"]
    assert replay([archived, *flags, "--all", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    flipped = [fact for fact in facts["differences"] if fact["recorded"]["type"] == "group.accepted"]
    assert facts["kinds"]["group.accepted -> group.rejected"] == len(flipped) > 0
    for difference in flipped:
        assert max(sample["reward"] for sample in difference["inputs"]["groups"][0]["samples"]) == 0


def test_a_flag_that_there_is_not(archived: str) -> None:
    with pytest.raises(UnknownFlag):
        replay([archived, "--over-sampling-batch", "4"])
