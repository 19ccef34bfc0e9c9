"""`Row`: one thing that was looked at, and what was seen. `Report`: all rows, printed and written as they come."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

MARK = "row: "
"""Begins a line of a look's output that is a row."""
LONGEST = 400
"""Characters of an error."""


@dataclass(frozen=True, slots=True)
class Row:
    """name: what was looked at. seen: in words. figures: by name with its unit, such as "step, s"."""

    name: str
    seen: str
    figures: dict[str, float | int | str] = field(default_factory=dict)

    @classmethod
    def failed(cls, name: str, error: Exception) -> Row:
        """Return the row of a look that raised."""
        return cls(name, f"{type(error).__name__}: {str(error)[:LONGEST]}")

    def say(self) -> None:
        """Print it for the process that started this look."""
        print(MARK + json.dumps(asdict(self)), flush=True)

    @classmethod
    def read(cls, line: str) -> Row | None:
        """Return the row of a line that `say` printed; None for any other line."""
        return cls(**json.loads(line.removeprefix(MARK))) if line.startswith(MARK) else None


def shown(value: float | int | str) -> str:
    """Return a figure in four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(row: Row) -> str:
    """Return a line of the table for docs/gpu.md."""
    figures = "; ".join(f"{name} {shown(value)}" for name, value in row.figures.items())
    cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in (row.name, row.seen, figures))
    return f"| {' | '.join(cells)} |"


class Report:
    """folder: where `gpu.json` and `gpu.md` are written again with each row; None for nowhere."""

    def __init__(self, folder: Path | None) -> None:
        self.rows: list[Row] = []
        self._folder = folder

    def add(self, row: Row) -> None:
        """Print and write it."""
        self.rows.append(row)
        print(markdown(row), flush=True)
        if self._folder is not None:
            (self._folder / "gpu.json").write_text(json.dumps([asdict(row) for row in self.rows], indent=1) + "\n")
            lines = ["| what | seen | figures |", "|---|---|---|", *map(markdown, self.rows)]
            (self._folder / "gpu.md").write_text("\n".join(lines) + "\n")
