"""`python -m benchmarks --against`: whose turn it is, which seconds count, what is marked, and what is left behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.against import child, compare
from benchmarks.against.checkout import HERE, checkout_of
from benchmarks.against.compare import Compared, Turn
from schemas.errors import ConfigError


def test_turns_alternate_so_that_a_drift_hits_both() -> None:
    assert list(compare.order(3)) == [True, False, False, True, True, False]


def test_the_least_of_each_kind_of_seconds_counts() -> None:
    assert compare.least([(2.0, 5.0), (3.0, 4.0)]) == (2.0, 4.0)


def test_what_is_slower_than_the_tolerance_is_marked() -> None:
    rows = [
        Compared("as fast", (1e-6, 9.0), (1e-6, 1.0), by_clock=False),
        Compared("slower", (1.0, 9.0), (1.1, 1.0), by_clock=False),
        Compared("by the clock", (1.0, 2.0), (9.0, 1.0), by_clock=True),
    ]
    _, *lines = compare.table(rows, "abc", tolerance=0.05)
    assert [line.endswith("SLOWER") for line in lines] == [False, True, False]
    assert "2.00 by clock" in lines[2]
    assert "1 us" in lines[0]


def _turns(monkeypatch: pytest.MonkeyPatch, here: float, there: float, failure: str = "") -> set[Path]:
    """The checkouts that had a turn."""
    checkouts = set[Path]()

    def turn(name: str, checkout: Path, data: Path) -> Turn:
        assert (checkout / "benchmarks").is_dir()
        checkouts.add(checkout)
        seconds = here if checkout == HERE else there
        return Turn({name: (seconds, seconds)}, failure)

    monkeypatch.setattr(compare, "run_turn", turn)
    return checkouts


@pytest.mark.parametrize(("here", "code"), [(1.0, 0), (1.04, 0), (1.2, 1)])
def test_it_fails_where_anything_is_slower(
    here: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkouts = _turns(monkeypatch, here, 1.0)
    assert main(["--against", "HEAD", "--only", "rescore"]) == code
    assert "rescore" in capsys.readouterr().out
    (other,) = checkouts - {HERE}
    assert not other.exists()
    listed = subprocess.run(["git", "-C", str(HERE), "worktree", "list"], capture_output=True, text=True, check=True)
    assert str(other) not in listed.stdout


def test_a_turn_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _turns(monkeypatch, 1.0, 1.0, failure="no such thing")
    assert main(["--against", "HEAD", "--only", "fold"]) == 1
    assert "fold: the other checkout failed: no such thing" in capsys.readouterr().out


def test_a_child_says_why_it_failed(tmp_path: Path) -> None:
    assert "ModuleNotFoundError" in compare.run_turn("rescore", tmp_path, tmp_path / "data").failure


def test_an_unknown_commit_or_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no commit 'no-such-commit'"), checkout_of("no-such-commit"):
        raise AssertionError
    for command in (["--against", "HEAD", "--only", "engine"], ["--only", "archive"]):
        with pytest.raises(SystemExit):
            main(command)
        assert "there is no" in capsys.readouterr().err


def test_each_name_stands_where_the_list_says() -> None:
    assert all(child.named(name) for name in child.MOVED)
