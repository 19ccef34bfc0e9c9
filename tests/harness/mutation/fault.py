"""`Fault`: one change of one product file, from the list or generated."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LISTED = HERE / "faults"
EQUIVALENT = HERE / "equivalent.toml"


@dataclass(frozen=True, slots=True)
class Fault:
    """at: the place of `old` in the file, in bytes; of a listed one -1, as its text occurs there once. change: how it
    was generated. tests: files that are tried first. equivalent: why no test can notice it; empty if one has to.
    """

    area: str
    file: str
    old: str
    new: str
    at: int = -1
    change: str = "listed"
    why: str = ""
    tests: tuple[str, ...] = ()
    equivalent: str = ""

    @property
    def id(self) -> str:
        """Return an id that changes only with the text, and with the place of a generated fault."""
        content = "\0".join((self.file, self.old, self.new, str(self.at)))
        return hashlib.sha256(content.encode()).hexdigest()[:8]

    def begin(self, source: bytes) -> int:
        """Return the offset of the change. Raises ValueError if the text is missing, or there more than once."""
        if self.at >= 0:
            return self.at
        old = self.old.encode()
        if (count := source.count(old)) != 1:
            raise ValueError(f"{self.file} has the old text of fault {self.id} {count} times, not once: {self.old!r}")
        return source.index(old)

    def line(self, source: bytes) -> int:
        """The number of its first line that changes."""
        blank = len(self.old) - len(self.old.lstrip())
        return source.count(b"\n", 0, self.begin(source) + blank) + 1

    def applied(self, source: bytes) -> bytes:
        """The file with the fault in it."""
        begin = self.begin(source)
        return source[:begin] + self.new.encode() + source[begin + len(self.old.encode()) :]


def listed() -> list[Fault]:
    """All of the list, in its order."""
    return [
        Fault(**{**entry, "tests": tuple(_files(entry.get("tests", ())))})
        for path in sorted(LISTED.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    ]


def _files(tests: Iterable[str]) -> Iterator[str]:
    """Yield the test files. A folder means all test files in it."""
    for test in tests:
        below = sorted((ROOT / test).rglob("test_*.py")) if (ROOT / test).is_dir() else [ROOT / test]
        yield from (str(path.relative_to(ROOT)) for path in below)


def equivalents() -> dict[tuple[str, str, str], str]:
    """Why a generated fault cannot be noticed, by file, text of its line, and change."""
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    return {(entry["file"], entry["line"], entry["change"]): entry["why"] for entry in entries}
