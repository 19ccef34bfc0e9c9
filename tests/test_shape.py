"""The shape of the code: how long files and functions may be, and why some files are longer."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "storage", "slime_events", "actors", "serve_apps", "benchmarks", "tests", "tools")
FUNCTION_LINES = 60
FILE_LINES = 400

LONGER_FILES = {
    "tests/storage/log/test_log_contract.py": (468, "the one contract of every log"),
}
"""Most lines, and why there are more than others have."""

_DEF = re.compile(r"( *)(?:async )?def (\w+)")
SOURCES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if "inputs" not in path.parts  # users' files, as they come
]


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and lines of each function, by indentation: taking every file apart as Python does would cost seconds."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for begin, line in enumerate(lines):
        if match := _DEF.match(line):
            outside = re.compile(rf" {{0,{len(match[1])}}}[^\s)]")
            ends = (at for at, later in enumerate(lines[begin + 1 :], begin + 1) if outside.match(later))
            end = next(ends, len(lines))
            while not lines[end - 1].strip():
                end -= 1
            yield f"{path.relative_to(ROOT)}:{begin + 1} {match[2]}", end - begin


def test_a_file_is_short_or_says_why_it_is_not() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert not {name: lines for name, lines in lengths.items() if lines > LONGER_FILES.get(name, (FILE_LINES,))[0]}, (
        "split them by noun"
    )
    assert not [name for name in LONGER_FILES if lengths.get(name, 0) <= FILE_LINES], "no exception any more"


def test_a_function_is_short() -> None:
    lengths = dict(function for path in SOURCES for function in _functions(path))
    assert len(lengths) > 5000
    assert not {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES}


def test_every_part_has_its_rung_on_the_import_ladder() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ladder = settings["tool"]["importlinter"]["contracts"][0]
    rungs = set(re.findall(r"[\w.]+", " ".join(ladder["layers"])))
    rooms = {f"slime_events.{path.name}" for path in (ROOT / "slime_events").glob("[a-z]*/")}
    assert rooms - rungs == set()


def test_no_file_has_the_marks_of_a_merge() -> None:
    pages = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *SOURCES)
    marks = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert [str(path) for path in pages if marks.search(path.read_text(encoding="utf-8"))] == []
