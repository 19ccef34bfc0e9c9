"""Find wording that a new reader would stumble over: `python -m tools.words [PATH ...]`.

Prints `path:line: rule: text` for each docstring, comment, string and identifier that breaks a rule, and a count per
thousand lines. Without a path it reads the whole repository.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("schemas", "storage", "slime_events", "actors", "serve_apps")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs")
OTHERS = frozenset({"__pycache__", "node_modules"})
"""Folders whose files are not of this repository."""

OPENERS = re.compile(r"(Of|As|With|By|What|How|Those|Both|The same|Where|Whose|In the place)\b")
"""A docstring that begins with one of these continues its name in place of being a sentence."""

PHRASES = {
    "has of": r"\bwhat (?:\w+ ){1,4}(?:has|have|had) of\b",
    "in the place of": r"\bin the(?:ir)? place of\b|\bin its place\b|\bin their place\b",
    "goes on": r"\b(?:go|goes|went|going|gone) on\b(?! (?:the|a) (?:GPU|device|CPU)\b)",
    "whoever": r"\bwho(?:m)?ever\b",
    "comes of": r"\b(?:come|comes|came|coming) of\b",
    "is told": r"\b(?:is|are|was|were|be|been|being) told\b",
    "is said": r"\b(?:is|are|was|were|be|been|being) said\b",
    "stands": r"\bstands\b",
    "to be had": r"\bto be had\b",
    "for ever": r"\bfor ever\b",
    "so many": r"\bso many\b",
    "where for if": r"\bwhere (?:there (?:is|are|was|were)|none\b|nobody\b|any\b)",
    "is no": r"\b(?:that|which|who) (?:is|are) no \w+",
}
"""Phrases of our own that a standard word replaces, by the name of the rule."""

_PHRASES = {rule: re.compile(pattern, re.IGNORECASE) for rule, pattern in PHRASES.items()}
_ANY = re.compile("|".join(PHRASES.values()), re.IGNORECASE)

IDENTIFIERS = frozenset(
    {"asked", "told", "said", "given", "found", "known", "made", "wanted", "one"}
)  # fmt: skip
"""Names that say nothing about what they hold."""

ON_THE_WIRE: dict[str, frozenset[str]] = {
    "slime_events/analysis/lineage/lineage.py": frozenset({"asked"}),
    "slime_events/analysis/views/run.py": frozenset({"given"}),
    "schemas/turns.py": frozenset({"asked"}),
    "slime_events/core/state/apply.py": frozenset({"wanted"}),
    "slime_events/core/state/group.py": frozenset({"asked"}),
    "slime_events/core/state/run.py": frozenset({"wanted"}),
    "slime_events/loop/prompts/json_value.py": frozenset({"is no"}),
}
"""By path: fields of events, columns and protocols that keep such a name, and rules that a stored text breaks."""


DATA = frozenset({"slime_events/plugins/rewards/ifbench/text.py", "tests/rewards/test_ifbench.py"})
"""Files with lists of English words, whose strings are no prose."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A place that breaks a rule."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.rule}: {self.text}"


def findings(path: Path) -> list[Finding]:
    """Return what breaks a rule in a Python file or a Markdown page, in the order of lines."""
    text = path.read_text()
    places = _in_python(path, text) if path.suffix == ".py" else _in_page(text)
    return [Finding(path, line, rule, excerpt) for line, rule, excerpt in sorted(places)]


def files(paths: Sequence[Path]) -> list[Path]:
    """Return the Python files and Markdown pages under `paths`, except this file, which quotes each phrase."""
    every = [path for root in paths for path in ([root] if root.is_file() else sorted(root.rglob("*")))]
    return [
        path
        for path in every
        if path.suffix in (".py", ".md") and not OTHERS & {*path.parts} and path != Path(__file__)
    ]


def _in_python(path: Path, text: str) -> Iterator[tuple[int, str, str]]:
    nodes, name = list(ast.walk(ast.parse(text))), str(path.relative_to(ROOT))
    kept = ON_THE_WIRE.get(name, frozenset())
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring and OPENERS.match(docstring):
                yield node.body[0].lineno, "opener", _excerpt(docstring, 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and name not in DATA:
            yield from (phrase for phrase in _phrases(node.value, node.lineno) if phrase[1] not in kept)
    yield from ((line, "identifier", identifier) for line, identifier in _identifiers(nodes) if identifier not in kept)
    if not any("#" in line and _ANY.search(line) for line in text.splitlines()):
        return  # no comment has a phrase; tokens take longer than all else
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _phrases(token.string, token.start[0])


def _identifiers(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each variable, parameter, field and function that says nothing."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                line = node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                line = node.lineno
            case _:
                continue
        if name.strip("_") in IDENTIFIERS:
            yield line, name


def _in_page(text: str) -> Iterator[tuple[int, str, str]]:
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield from _phrases(line, number)


def _phrases(text: str, line: int) -> Iterator[tuple[int, str, str]]:
    if not _ANY.search(text):
        return
    for rule, pattern in _PHRASES.items():
        for match in pattern.finditer(text):
            yield line + text.count("\n", 0, match.start()), rule, _excerpt(text, match.start())


def _excerpt(text: str, start: int) -> str:
    return " ".join(text[max(0, start - 30) : start + 60].split())


def main(arguments: Sequence[str]) -> int:
    """Print every finding and the count per thousand lines; 1 if there is any."""
    paths = [Path(argument).resolve() for argument in arguments] or [ROOT / name for name in (*PRODUCT, *PAGES)]
    read = files(paths)
    every = [finding for path in read for finding in findings(path)]
    for finding in every:
        print(finding)
    lines = sum(len(path.read_text().splitlines()) for path in read)
    print(f"{len(every)} in {lines} lines: {1000 * len(every) / max(lines, 1):.2f} per thousand")
    return 1 if every else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
