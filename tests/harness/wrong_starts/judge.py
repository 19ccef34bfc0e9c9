"""What a wrong start has to look like from outside."""

from __future__ import annotations

from pathlib import Path

from tests.harness.wrong_starts.cases import Case

CACHE = "__pycache__"


def complaints(case: Case, code: int, said: str) -> list[str]:
    """What is wrong with how it ended. said: on stderr."""
    lines = said.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    found = []
    if code not in case.codes:
        found.append(f"exit code {code}")
    if len(errors) != 1:
        found.append(f"{len(errors)} sentences")
    if more := [line for line in lines if not line.startswith(("error: ", "note: "))]:
        found.append(f"something else is said: {more[0]}")
    names = (case.names,) if isinstance(case.names, str) else case.names
    if missed := [name for name in names if not any(name in line for line in errors)]:
        found.append(f"nothing said of {', '.join(missed)}: {said.strip()[-300:]}")
    return found


def listing(folder: Path) -> list[Path]:
    """All that lies in it, but for what Python keeps of a user's modules."""
    return sorted(path for path in folder.rglob("*") if CACHE not in path.parts)
