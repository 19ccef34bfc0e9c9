"""The threat model: each line names tests, and each test is there and runs with the suite."""

from __future__ import annotations

import ast
import re

import pytest

from slime_events.core.config.installed import parsed
from tests.docs.pages import ROOT

LINES = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs" / "security.md")
    .read_text()
    .partition("## Threat model")[2]
    .partition("\n## ")[0]
    .splitlines()
    if line.startswith("| ") and not line.startswith(("| threat", "|---"))
]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_threat_has_what_stops_it_and_a_test() -> None:
    assert len(LINES) > 15
    assert [line for line in LINES if len(line) != 3 or not NAMED.search(line[2])] == []


@pytest.mark.parametrize(("file", "name"), sorted({name for line in LINES for name in NAMED.findall(line[-1])}))
def test_a_named_test_is_there(file: str, name: str) -> None:
    tree = parsed(ROOT / file)
    (test,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    assert not any(
        "skip" in ast.unparse(decorator) or "soak" in ast.unparse(decorator) for decorator in test.decorator_list
    )
