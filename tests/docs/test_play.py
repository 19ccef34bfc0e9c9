"""Test that a documented start passes only if it ends as its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.docs_run.blocks import Start
from tests.harness.docs_run.case import Case
from tests.harness.docs_run.play import play
from tests.harness.docs_run.stage import Stage

SAYS = "note: tis_clip has no effect: 12 of 2,000.\nerror: --x: /home/me/a.py has no 'f', nor ... here"
PRINTS = (
    "note: tis_clip has no effect: 13 of 2,999.\nerror: --x: {home}/a.py has no 'f', nor any here\nstep 2/2  reward"
)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path.resolve() / "me")


def ended(stage: Stage, prints: str, code: int, *, says: str = "", shown: str = SAYS, **fields: object) -> list[str]:
    (stage.home / "prints.txt").write_text(prints.format(home=stage.home))
    text = f"cat prints.txt; exit {code}"
    start = Start("docs/none.txt", 1, text, tuple(shown.splitlines()))
    case = Case(page=start.page, text=text, says=(says,) if says else (), **fields)  # type: ignore[arg-type]
    return play(case, start, stage).wrong[:-1]


def test_numbers_and_folders_may_be_others_and_nothing_else(stage: Stage) -> None:
    assert ended(stage, PRINTS, 2, says=r"step 2", steps=2) == []
    assert ended(stage, PRINTS, 0) == ["exit code 0 instead of 2"]
    assert ended(stage, PRINTS, 0, shown="") == []
    (wrong,) = ended(stage, PRINTS.replace("tis_clip", "eps_clip"), 2)
    assert wrong == f"the page shows, and it did not say: {SAYS.splitlines()[0]}"
    assert len(ended(stage, "nothing", 2, says="a line", steps=3)) == 4
    assert ended(stage, PRINTS + "\nTraceback (most recent call last)", 2) == ["a traceback"]


def test_what_is_killed_or_interrupted_ends_so(stage: Stage) -> None:
    """The shell that waits is what is killed; a command of ours takes its place."""
    waits = "echo begun; exec sleep 600"
    for fields in ({"killed": "begun"}, {"stopped": "begun", "code": -2}):
        start = Start("docs/none.txt", 1, waits)
        played = play(Case(page=start.page, text=waits, **fields), start, stage)  # type: ignore[arg-type]
        assert played.wrong == []
        assert played.seconds < 300, "it must not wait for the command"


def test_what_fails_beside_it_is_no_end_as_said(stage: Stage) -> None:
    def beside(stage: Stage) -> None:
        raise OSError("no client")

    start = Start("docs/none.txt", 1, "true")
    wrong = play(Case(page=start.page, text="true", beside=beside), start, stage).wrong
    assert "no client" in wrong[0]
