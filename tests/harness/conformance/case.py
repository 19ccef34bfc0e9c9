"""One case: inputs, and what slime's own function gave for them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RELATIVE = 1e-5
"""What the files ask for: slime's figures are float32, and some of them were amplified."""
ABSOLUTE = 1e-6
"""They are rounded to seven digits behind the point."""
MOST_ABSOLUTE = 1e-4
"""What a case may ask for."""


class NotThere(Exception):
    """A runner says: the case is about something that the project does not have yet (what). Not a failure."""


class UnknownShape(Exception):
    """A runner says: this is no input of its function. A failure."""


@dataclass(frozen=True, slots=True)
class Case:
    """`symbol` is slime's function. `expected` is a value, or {"raises": class name} where the function raised."""

    id: str
    family: str
    input: Any
    expected: Any
    tolerance: float = 0.0
    symbol: str = ""

    @property
    def raises(self) -> str | None:
        """The name of the error that slime raised, if it did."""
        if isinstance(self.expected, dict) and set(self.expected) == {"raises"}:
            return str(self.expected["raises"])
        return None


def load(path: Path) -> list[Case]:
    """The cases of a file, in its order."""
    return [
        Case(
            raw["id"],
            raw["family"],
            raw["input"],
            raw["expected"],
            raw.get("tolerance_abs") or 0.0,
            raw.get("slime_symbol", ""),
        )
        for raw in json.loads(path.read_text())["cases"]
    ]


def same(expected: Any, got: Any, tolerance: float = 0.0, relative: float = RELATIVE) -> bool:
    """Equal through lists and dicts; numbers within the tolerances; tuples are lists, 1 == 1.0 == True.

    Of a dict only the entries that are expected count: ours may say more. NaN is NaN.
    """
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and expected.keys() <= got.keys()
            and all(same(expected[key], got[key], tolerance, relative) for key in expected)
        )
    if isinstance(expected, list | tuple):
        return (
            isinstance(got, list | tuple)
            and len(expected) == len(got)
            and all(same(a, b, tolerance, relative) for a, b in zip(expected, got, strict=True))
        )
    if isinstance(expected, int | float) and isinstance(got, int | float):
        if math.isnan(expected) or math.isnan(got):
            return math.isnan(expected) and math.isnan(got)
        within = max(ABSOLUTE, min(tolerance, MOST_ABSOLUTE))
        return math.isclose(expected, got, rel_tol=relative, abs_tol=within)
    return bool(expected == got)
