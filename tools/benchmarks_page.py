"""Generate the table of `docs/benchmarks.md`: `python -m tools.benchmarks_page docs/benchmarks.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.baseline import Baseline, Measurement, read_all
from benchmarks.figure import Figure
from benchmarks.table import number, target
from tools.page_command import update_page

BEGIN = "<!-- made by tools.benchmarks_page -->\n"
HEAD = ("benchmark", "figure", "value", "target", "met", "machine; load before, after; commit", "parts and remarks")


def document(page: str, baselines: Mapping[str, Baseline] | None = None) -> str:
    """Return the page with a new table from the baselines."""
    lines = (HEAD, ["---"] * len(HEAD), *rows(read_all() if baselines is None else baselines))
    return page.partition(BEGIN)[0] + BEGIN + "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rows(baselines: Mapping[str, Baseline]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each figure."""
    for name, baseline in baselines.items():
        for measurement, figure in baseline.newest():
            texts = filter(None, (figure.note.replace("|", "/"), baseline.remarks.get(figure.name)))
            yield (
                f"`{name}`",
                figure.name.replace("|", "/"),
                "-" if figure.value is None else f"{number(figure.value)} {figure.unit}",
                target(figure),
                _met(figure),
                _conditions(measurement),
                "; ".join(texts),
            )


def _met(figure: Figure) -> str:
    is_open = figure.met is None or figure.value is None
    return "-" if is_open else ("yes" if figure.met else "**no**")


def _conditions(measurement: Measurement) -> str:
    load = measurement.load and f"{measurement.load[0]:.1f}, {measurement.load[1]:.1f}"
    return "; ".join(filter(None, (measurement.machine, load, measurement.commit)))


if __name__ == "__main__":
    update_page(__doc__, document)
