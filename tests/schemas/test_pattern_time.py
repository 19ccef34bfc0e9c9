"""Every regular expression of the product that may see text from outside takes time in proportion to the text.

They are found in the source, so that a new one is measured too. Graders' patterns and those of redaction have tests of
their own.
"""

from __future__ import annotations

import ast
import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("schemas", "storage", "serve_apps", "actors", "slime_events")
ELSEWHERE = ("plugins/rewards/", "schemas/redaction.py")
METHODS = {"compile", "search", "match", "fullmatch", "sub", "findall", "finditer", "split"}
WHOLE = {
    "schemas/references.py",
    "serve_apps/engines/messages.py",
    "serve_apps/http/console/rows.py",
    "serve_apps/http/tinker/names.py",
    "serve_apps/rollouts/suspects.py",
    "slime_events/core/config/yaml_text.py",
    "slime_events/loop/prompts/data_file.py",
}
"""Files that look whether a whole text has a form, and search in none."""
OWN_TEXT = {"storage/reaches.py"}
"""Files that look in the source code of installed packages alone."""
IMPORTS_RE = re.compile(r"^\s*import re$", re.MULTILINE)
SIZE, MOST_S = 20_000, 1.5


def patterns() -> Iterator[tuple[str, str, str]]:
    """(file, method, pattern) of each that is written as a text."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            file = str(path.relative_to(ROOT))
            if file in OWN_TEXT or any(part in file for part in ELSEWHERE):
                continue
            source = path.read_text()
            if not IMPORTS_RE.search(source):  # parsing all files takes seconds at each collection of tests
                continue
            for node in ast.walk(ast.parse(source)):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                    continue
                holder, first = node.func.value, node.args[0]
                of_re = isinstance(holder, ast.Name) and holder.id == "re" and node.func.attr in METHODS
                if of_re and isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield file, node.func.attr, first.value


FOUND = list(patterns())


def shapes(pattern: str) -> Iterator[str]:
    """Long texts of the parts that the pattern itself names, which never come to its end."""
    words = re.findall(r"[A-Za-z]{2,}|[^A-Za-z\\()|*+?^$]", re.sub(r"\\.|\(\?[:P<a-z=!>]*", " ", pattern))
    atoms = list(dict.fromkeys([*words, "a", "A", "0", " ", "\n", '"', ".", "-", "_", ":", "@", "[", "]", "://"]))[:24]
    for first in atoms:
        yield first * (SIZE // len(first))
    for first, second in itertools.permutations(atoms, 2):
        yield (first + second) * (SIZE // 4 // len(first + second))


def test_there_are_patterns() -> None:
    assert len(FOUND) > 30


@pytest.mark.parametrize(("file", "method", "pattern"), FOUND, ids=[f"{file}:{text[:20]}" for file, _, text in FOUND])
def test_time_is_in_proportion_to_the_text(file: str, method: str, pattern: str) -> None:
    compiled = re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    use = compiled.match if method in ("match", "fullmatch") or file in WHOLE else compiled.search
    for text in shapes(pattern):
        begin = time.process_time()
        use(text + "\x00")
        assert time.process_time() - begin < MOST_S, text[:40]
