"""Judges how a wrong start ended, from its exit code and stderr."""

from __future__ import annotations

from pathlib import Path

from tests.harness.wrong_starts.cases import Case

CACHE = "__pycache__"


def complaints(case: Case, code: int, stderr: str) -> list[str]:
    """Return what is wrong with the end of a start."""
    lines = stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    wrong = []
    if code not in case.codes:
        wrong.append(f"exit code {code}")
    if len(errors) != 1:
        wrong.append(f"{len(errors)} sentences")
    if more := [line for line in lines if not line.startswith(("error: ", "note: "))]:
        wrong.append(f"stderr has another line: {more[0]}")
    names = (case.names,) if isinstance(case.names, str) else case.names
    if missed := [name for name in names if not any(name in line for line in errors)]:
        wrong.append(f"stderr does not name {', '.join(missed)}: {stderr.strip()[-300:]}")
    return wrong


def listing(folder: Path) -> list[Path]:
    """All that lies in it, but for what Python keeps of a user's modules."""
    return sorted(path for path in folder.rglob("*") if CACHE not in path.parts)
