"""Comparisons as a markdown table."""

from __future__ import annotations

from collections.abc import Sequence

from tests.harness.layouts.comparison import Comparison

MARK = "tests.harness.layouts"
HEAD = (
    "family",
    "layout",
    "ranks",
    "loss",
    "gradient norm",
    "each gradient",
    "weights after 2 steps",
    "same digests twice",
)


def table(comparisons: Sequence[Comparison]) -> str:
    """Return the table. A row without figures has the reason."""
    with_settings = any(row.combination.variation for row in comparisons)
    head = (*HEAD[:2], *(["with"] if with_settings else []), *HEAD[2:])
    lines = [head, ["---"] * len(head)]
    lines += [_cells(row, with_settings=with_settings) for row in comparisons]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(row: Comparison, *, with_settings: bool) -> list[str]:
    combination = row.combination
    name = [combination.family, combination.title, *([combination.variation] if with_settings else [])]
    if row.text:
        kind = "refused" if row.refused else "failed"
        return [*name, str(combination.ranks), f"{kind}: {row.text}", "", "", "", ""]
    apart = (row.loss, row.norm, row.gradient, row.weight)
    return [*name, str(combination.ranks), *(f"{number:.1e}" for number in apart), "yes" if row.repeats else "no"]


def document(page: str, comparisons: Sequence[Comparison]) -> str:
    """Return a page with a new table between its two marks."""
    return with_table(page, MARK, table(comparisons))


def with_table(page: str, mark: str, table: str) -> str:
    """Return a page with a new table between the marks that name the program which made it."""
    begin, end = _marks(mark)
    before, _, after = page.partition(begin)
    return f"{before}{begin}\n{table}\n{end}{after.partition(end)[2]}"


def between_marks(page: str, mark: str) -> str:
    """Return a page's text between the marks."""
    begin, end = _marks(mark)
    return page.partition(begin)[2].partition(end)[0]


def _marks(mark: str) -> tuple[str, str]:
    return f"<!-- made by {mark} -->\n", f"<!-- end of {mark} -->\n"
