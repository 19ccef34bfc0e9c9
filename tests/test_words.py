"""Wording that a new reader stumbles over is kept out: `python -m tools.words` lists each place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.words import ON_THE_WIRE, PAGES, PRODUCT, ROOT, files, findings

ROOMS = (
    "tests/actors", "tests/agent_command", "tests/agents", "tests/algorithms", "tests/api", "tests/audit",
    "tests/benchmarks", "tests/child", "tests/cli", "tests/clock.py", "tests/compare", "tests/conductor",
    "tests/config", "tests/conftest.py", "tests/data", "tests/demo", "tests/deploy", "tests/docs", "tests/engine",
    "tests/export", "tests/filters", "tests/gateway", "tests/generate", "tests/golden", "tests/harness",
    "tests/hostile", "tests/learner", "tests/lineage", "tests/made", "tests/megatron", "tests/metrics", "tests/model",
    "tests/outages", "tests/plans.py", "tests/plug_points", "tests/query", "tests/replay", "tests/replay_rollout",
    "tests/rescore", "tests/retrain", "tests/rewards", "tests/rollout_function", "tests/run", "tests/schemas",
    "tests/scripted_engine.py", "tests/security", "tests/serve_apps", "tests/simulation", "tests/state",
    "tests/step", "tests/storage", "tests/telemetry", "tests/test_quick.py", "tests/test_reached.py",
    "tests/test_sets.py", "tests/test_shape.py", "tests/test_vendored.py", "tests/timetravel", "tests/tinker",
)  # fmt: skip
"""Tests whose wording is checked; the others follow."""
CASES = {
    "tests/harness/history/test_checker.py": "bytes that are no event",
    "tests/harness/wrong_starts/cases.py": "archive: a query that is no SQL",
}
"""Names of cases that keep a wording that a rule finds, as the ids of their tests are made of them."""
BROAD = re.compile(r"except (BaseException|Exception)( as \w+)?:")


@pytest.mark.parametrize("name", [*PRODUCT, *PAGES, *ROOMS])
def test_wording_is_plain(name: str) -> None:
    every = [finding for path in files([ROOT / name]) for finding in findings(path)]
    assert [str(finding) for finding in every if CASES.get(str(finding.path.relative_to(ROOT))) != finding.text] == []


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ('"""Of the one process that a learner is."""', ["opener"]),
        ('"""Return the settings of a learner."""', []),
        ("def read(asked: int) -> int: ...", ["identifier"]),
        ("for one in (1, 2): ...", ["identifier"]),
        ("told = 1", ["identifier"]),
        ("# what a batch has of its samples", ["has of"]),
        ('print("the run goes on")', ["goes on"]),
        ("# it runs on the GPU and the message is sent", []),
    ],
)
def test_a_rule_finds_what_it_is_for(
    text: str, rules: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.words.ROOT", tmp_path)
    file = tmp_path / "module.py"
    file.write_text(f"{text}\n")
    assert [finding.rule for finding in findings(file)] == rules


def test_code_in_a_page_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.words.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("It goes on.\n```\nnote: the run goes on\n```\n")
    assert [(finding.line, finding.rule) for finding in findings(page)] == [(1, "goes on")]


def test_a_name_that_is_stored_exists() -> None:
    """An entry of `ON_THE_WIRE` is used in its file."""
    for path, names in ON_THE_WIRE.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        assert all(re.search(rf"\b{name}\b", text) for name in names), path


def test_a_broad_except_says_why() -> None:
    """In a comment on its line or the next one."""
    bare = []
    for path in files([ROOT / name for name in PRODUCT]):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if BROAD.search(line) and "#" not in line and not lines[number + 1].lstrip().startswith("#"):
                bare.append(f"{path.relative_to(ROOT)}:{number + 1}")
    assert bare == []
