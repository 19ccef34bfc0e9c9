"""`starts_of`: the commands, programs and configs on a page that start a run, with what the page shows of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import DOCS, PAGES, ROOT

EXAMPLES = ROOT / "examples"
LEFT_OUT = (ROOT / "CHANGELOG.md", DOCS / "decisions")
"""What was, and why: no page that a user follows."""
STARTERS = "train|demo|resume|branch|learn|retrain"
_FENCE = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(
    rf"^(?:\$ )?((?:[A-Z_]+=\S+ )*(?:(?:\.venv/bin/)?slime-events (?:{STARTERS})\b"
    r"|slime-events gateway (?!.*--(?:issue|revoke|sources))"
    r"|sh \S+\.sh|python3? (?!-m venv| )|node |make (?!install|lint|docs-)|docker |kubectl |sbatch |systemctl ).*)$"
)
_NAMED = re.compile(r"# ([\w.]+\.(?:py|toml|yaml))")
"""The first line of a block that is a file of the reader's."""
_STARTS_A_RUN = re.compile(r"start_run\(|resume_run\(|branch_run\(|ServiceClient\(|/sessions\"|Launch\(")
"""In a program: one of the calls that start or drive a run."""
_OUTPUT = re.compile(r"^(?:note|error): ")


@dataclass(frozen=True, slots=True)
class Start:
    """Something on a page that starts a run. text: a command on one line, or the first line of a program or config.

    shown: the lines that the page shows below a command. body: the whole program or config.
    """

    page: str
    line: int
    text: str
    shown: tuple[str, ...] = ()
    body: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Key of the start in the table of cases."""
        return self.page, self.text

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> list[Path]:
    """Return the README and the pages, without the record of changes and decisions."""
    return [page for page in PAGES if not any(page.is_relative_to(folder) for folder in LEFT_OUT)]


def all_starts() -> list[Start]:
    """Return the starts of every page, and one for each program, script and config in `examples/`."""
    files = sorted(path for path in EXAMPLES.rglob("*") if path.suffix in {".sh", ".toml", ".py", ".mjs"})
    starts = [start for page in pages() for start in starts_of(page)]
    return starts + [Start(path.relative_to(ROOT).as_posix(), 1, "the file") for path in files]


def starts_of(page: Path) -> Iterator[Start]:
    """In the order of the page."""
    text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
    for fence in _FENCE.finditer(text):
        first = text.count("\n", 0, fence.start()) + 2
        language, body = fence[1].strip(), fence[2]
        if language in ("toml", "yaml"):
            yield Start(name, first, body.splitlines()[0], body=body)
        elif language == "python":
            if _STARTS_A_RUN.search(body) or _NAMED.fullmatch(body.splitlines()[0]):
                yield Start(name, first, body.splitlines()[0], body=body)
        elif language in ("", "sh", "bash", "console"):
            yield from _commands(name, first, body)


def files_of(page: Path) -> dict[str, str]:
    """Return the files that the page shows whole, by the name in their first line."""
    shown = {}
    for fence in _FENCE.finditer(page.read_text(encoding="utf-8")):
        if named := _NAMED.fullmatch(fence[2].splitlines()[0] if fence[2] else ""):
            shown[named[1]] = fence[2]
    return shown


def _commands(page: str, first: int, block: str) -> Iterator[Start]:
    """Yield the starts in a block or a transcript; lines joined by a backslash or an open quote are one command."""
    lines, at = block.splitlines(), 0
    while at < len(lines):
        begin, text = at, lines[at]
        at += 1
        command = _COMMAND.match(text)
        if command is None:
            continue
        while at < len(lines) and (text.endswith("\\") or text.count('"') % 2 or text.count("'") % 2):
            text = " ".join((text.removesuffix("\\").rstrip(), lines[at].strip()))
            at += 1
        shown = []
        while at < len(lines) and not lines[at].startswith("$ ") and not _COMMAND.match(lines[at]):
            shown.append(lines[at])
            at += 1
        yield Start(page, first + begin, _bare(text), tuple(shown))


def _bare(text: str) -> str:
    """Return the command without the prompt before it and the remark behind it."""
    text = text.removeprefix("$").strip().removeprefix(".venv/bin/")
    return re.split(r"\s{2,}(?:#|\()|\s+# ", text)[0].strip()


def notes_and_errors(start: Start) -> list[str]:
    """The lines that the page shows of what a command says about its flags."""
    return [line for line in start.shown if _OUTPUT.match(line)]
