"""The recorded figures: what is written, what is the newest, and that docs/benchmarks.md shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import baseline
from benchmarks.__main__ import main
from benchmarks.figure import Better, Figure, Row
from benchmarks.registry import NAMES
from tests.docs.pages import DOCS
from tools.benchmarks_page import HEAD, document, rows

PAGE = DOCS / "benchmarks.md"


def _row(benchmark: str, name: str, value: float | None) -> Row:
    figure = Figure(name=name, value=value, unit="s", target=2.0, better=Better.LOWER, note="of two")
    return Row(benchmark=benchmark, figure=figure, load=(1.0, 1.5), cores=2, seconds=3.0)


def test_the_page_shows_the_recorded_figures() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert document(page) == page, "python -m tools.benchmarks_page docs/benchmarks.md"


def test_every_file_is_a_benchmark_in_the_written_layout() -> None:
    for file in baseline.FOLDER.iterdir():
        assert file.suffix == ".json"
        assert file.stem in NAMES
        recorded = baseline.read(file.stem)
        assert file.read_bytes() == baseline.encoded(recorded)
        assert set(recorded.remarks) <= {figure.name for _, figure in recorded.newest()}


def test_measurements_are_added_and_the_newest_of_each_figure_is_shown(tmp_path: Path) -> None:
    (tmp_path / "step.json").write_bytes(baseline.encoded(baseline.Baseline(remarks={"a": "why"})))
    assert baseline.write([_row("step", "a", 1.0), _row("step", "b", 9.0)], "m1", "c1", tmp_path) == []
    assert baseline.write([_row("step", "a", 3.0)], "m1", "c2", tmp_path) == []
    recorded = baseline.read("step", tmp_path)
    assert [measurement.commit for measurement in recorded.measurements] == ["c2", "c1"]
    assert [(measurement.commit, figure.name) for measurement, figure in recorded.newest()] == [
        ("c2", "a"),
        ("c1", "b"),
    ]
    assert list(rows(baseline.read_all(tmp_path))) == [
        ("`step`", "a", "3 s", "<= 2", "**no**", "m1; 1.0, 1.5; c2", "of two; why"),
        ("`step`", "b", "9 s", "<= 2", "**no**", "m1; 1.0, 1.5; c1", "of two"),
    ]


def test_the_same_commit_on_the_same_machine_is_replaced(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        baseline.write([_row("step", "a", value)], "m1", "c1", tmp_path)
    (measurement,) = baseline.read("step", tmp_path).measurements
    assert measurement.figures[0].value == 2.0


def test_a_benchmark_without_a_value_is_not_written(tmp_path: Path) -> None:
    measured = [_row("trl", "a", None), _row("trl", "b", 1.0), _row("span", "c", 1.0)]
    assert baseline.write(measured, "m", "c", tmp_path) == ["trl"]
    assert list(baseline.read_all(tmp_path)) == ["span"]


def test_the_command_writes_a_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[Row]()

    def write(measured: Sequence[Row], machine: str, commit: str) -> list[str]:
        assert machine.endswith(" cores")
        assert len(commit.split()[0]) == 12
        written.extend(measured)
        return []

    monkeypatch.setattr(baseline, "write", write)
    monkeypatch.setattr("benchmarks.__main__.measure", lambda name, *, long: [_row(name, "a", 1.0)])
    assert main(["--only", "span", "--write-baseline"]) == 0
    assert [row.benchmark for row in written] == ["span"]


def test_a_comparison_writes_no_baseline() -> None:
    with pytest.raises(SystemExit):
        main(["--against", "HEAD", "--write-baseline"])


def test_a_value_that_is_a_range_meets_and_misses_nothing() -> None:
    figure = Figure(name="a", value=None, unit="s", target=5.0, note="3 to 4 s")
    measurement = baseline.Measurement(machine="m", commit=None, load=None, figures=(figure,))
    shown = document("before\n", {"step": baseline.Baseline(remarks={}, measurements=(measurement,))})
    assert shown.splitlines()[-1] == "| `step` | a | - | >= 5 | - | m | 3 to 4 s |"
    assert shown.splitlines()[0] == "before"
    assert [line.count("|") for line in shown.splitlines()[-2:]] == [len(HEAD) + 1] * 2
