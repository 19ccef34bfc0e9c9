"""Each wrong start in this process: one sentence, a code that says so, and nothing left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime_events.app.cli.main import main
from tests.harness.wrong_starts.cases import CASES, Case, prepare
from tests.harness.wrong_starts.judge import complaints, listing
from tests.harness.wrong_starts.own_code import FILES


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the cases name."""
    folder = tmp_path_factory.mktemp("wrong")
    prepare(folder)
    return folder


@pytest.fixture
def own_modules() -> Iterator[None]:
    """Remove the modules and paths of a user's files from this process after the test."""
    before, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = before
    theirs = {Path(file).stem for file in FILES}
    for name in {name for name in sys.modules if name.startswith("user_") or name in theirs} - modules:
        del sys.modules[name]


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_start_is_refused_before_anything_is_there(
    case: Case, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    before = listing(place)
    code = main(case.words)
    assert complaints(case, code, capsys.readouterr().err) == []
    assert listing(place) == before
