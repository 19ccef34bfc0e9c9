"""`Baseline`: the recorded figures of a benchmark, in a file of `benchmarks/baselines/`.

`python -m benchmarks --write-baseline` writes the files, and `python -m tools.benchmarks_page docs/benchmarks.md` the
table of the newest figures.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec

from benchmarks.figure import Figure, Row
from benchmarks.registry import NAMES
from schemas.doc import doc

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "baselines"


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a benchmark from one machine."""

    machine: Annotated[str, doc("Processor and number of cores")]
    commit: Annotated[str | None, doc("Measured commit, with ` and changes` for a changed tree; None if not recorded")]
    load: Annotated[tuple[float, float] | None, doc("Load average before and after; None if it is not recorded")]
    figures: tuple[Figure, ...]


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """All recorded measurements of a benchmark."""

    remarks: Annotated[dict[str, str], doc("Markdown by figure, written by hand: for example why a target is missed")]
    measurements: Annotated[tuple[Measurement, ...], doc("The newest first")] = ()

    def newest(self) -> Iterator[tuple[Measurement, Figure]]:
        """Yield each figure from the newest measurement that has it."""
        names = set[str]()
        for measurement in self.measurements:
            for figure in measurement.figures:
                if figure.name not in names:
                    names.add(figure.name)
                    yield measurement, figure


def read(name: str, folder: Path = FOLDER) -> Baseline:
    """Read the baseline of a benchmark. It has no measurements if there is no file."""
    file = folder / f"{name}.json"
    return msgspec.json.decode(file.read_bytes(), type=Baseline) if file.exists() else Baseline(remarks={})


def read_all(folder: Path = FOLDER) -> dict[str, Baseline]:
    """Read the baselines of all benchmarks that have one, in the order of the registry."""
    return {name: read(name, folder) for name in NAMES if (folder / f"{name}.json").exists()}


def write(rows: Sequence[Row], machine: str, commit: str, folder: Path = FOLDER) -> list[str]:
    """Add measured rows to the files of their benchmarks, and return the names that were not written.

    Not written are benchmarks with a figure without a value. An earlier measurement of the same commit on the same
    machine is replaced.
    """
    omitted = []
    for name, group in groupby(rows, key=lambda row: row.benchmark):
        measured = list(group)
        if any(row.figure.value is None for row in measured):
            omitted.append(name)
            continue
        figures = tuple(row.figure for row in measured)
        newest = Measurement(machine=machine, commit=commit, load=measured[0].load, figures=figures)
        before = read(name, folder)
        earlier = (other for other in before.measurements if (other.machine, other.commit) != (machine, commit))
        baseline = Baseline(remarks=before.remarks, measurements=(newest, *earlier))
        (folder / f"{name}.json").write_bytes(encoded(baseline))
    return omitted


def encoded(baseline: Baseline) -> bytes:
    """Return the content of a baseline's file."""
    return msgspec.json.format(msgspec.json.encode(baseline), indent=2) + b"\n"


def this_machine() -> str:
    """Return processor and number of cores of this machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else os.uname().machine}, {len(os.sched_getaffinity(0))} cores"


def this_commit() -> str:
    """Return the commit of this checkout, with a remark if files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + (" and changes" if git("status", "--porcelain", "-uno") else "")
