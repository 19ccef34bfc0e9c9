"""One case: inputs, and what slime's own function gave for them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RELATIVE_TOLERANCE = 1e-5
"""The figures are float32 rounded to seven digits."""


class NotThere(Exception):
    """A runner says: the case is about something that the project does not have yet (what). Not a failure."""


@dataclass(frozen=True, slots=True)
class Case:
    """`expected` is a value, or {"raises": class name} where slime's function raised."""

    id: str
    family: str
    input: Any
    expected: Any
    tolerance: float

    @property
    def raises(self) -> bool:
        """Whether slime raised."""
        return isinstance(self.expected, dict) and set(self.expected) == {"raises"}


def load(path: Path) -> list[Case]:
    """The cases of a file, in its order."""
    return [
        Case(raw["id"], raw["family"], raw["input"], raw["expected"], raw.get("tolerance_abs") or 0.0)
        for raw in json.loads(path.read_text())["cases"]
    ]


def same(expected: Any, got: Any, tolerance: float) -> bool:
    """Equal through lists and dicts; numbers within the tolerance; tuples are lists, 1 == 1.0 == True.

    Of a dict only the entries that are expected count: ours may say more.
    """
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and expected.keys() <= got.keys()
            and all(same(expected[key], got[key], tolerance) for key in expected)
        )
    if isinstance(expected, list):
        return (
            isinstance(got, list | tuple)
            and len(expected) == len(got)
            and all(same(a, b, tolerance) for a, b in zip(expected, got, strict=True))
        )
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return math.isclose(expected, got, rel_tol=RELATIVE_TOLERANCE, abs_tol=tolerance)
    return bool(expected == got)
