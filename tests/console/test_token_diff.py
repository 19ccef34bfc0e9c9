"""The client's differences of two samples against a longest common subsequence that is computed here."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools.console_build import CLIENT

pytestmark = pytest.mark.soak
RUN = """
import { diff } from "./diff.mjs";
import { readFileSync } from "node:fs";
const pairs = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(pairs.map(([a, b, most]) => diff(a, b, most))));
"""


def _diffs(folder: Path, pairs: list[tuple[list[int], list[int], int]]) -> list[dict[str, Any]]:
    """Run the client's function in node."""
    subprocess.run(("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"), cwd=CLIENT, check=True)
    esbuild = CLIENT / "node_modules/.bin/esbuild"
    subprocess.run((esbuild, "src/diff.ts", "--format=esm", f"--outfile={folder}/diff.mjs"), cwd=CLIENT, check=True)
    (folder / "run.mjs").write_text(RUN, encoding="utf-8")
    answer = subprocess.run(("node", folder / "run.mjs"), input=json.dumps(pairs).encode(), stdout=-1, check=True)
    return list(json.loads(answer.stdout))


def _common(a: list[int], b: list[int]) -> int:
    """The length of the longest common subsequence, by the table of all pairs of prefixes."""
    row = [0] * (len(b) + 1)
    for one in a:
        before = row
        row = [0]
        for at, other in enumerate(b):
            row.append(before[at] + 1 if one == other else max(before[at + 1], row[at]))
    return row[-1]


def _of(parts: list[dict[str, Any]], a: list[int], b: list[int], *kinds: str) -> list[int]:
    return [n for p in parts if p["kind"] in kinds for n in (a if p["kind"] == "gone" else b)[p["from"] : p["to"]]]


def test_the_differences_are_a_shortest_script(tmp_path: Path) -> None:
    chance = random.Random(7)
    pairs: list[tuple[list[int], list[int], int]] = [([], [], 9), ([1], [], 9), ([], [1], 9), ([1, 2], [2, 1], 9)]
    for _ in range(400):
        letters = chance.choice((2, 3, 20))
        a, b = ([chance.randrange(letters) for _ in range(chance.randrange(40))] for _ in range(2))
        pairs.append((a, b, chance.choice((0, 3, 1500))))
    whole = 0
    for (a, b, most), answer in zip(pairs, _diffs(tmp_path, pairs), strict=True):
        parts = answer["parts"]
        assert _of(parts, a, b, "same", "only") == b
        assert _of(parts, a, b, "same", "gone") == a
        edits = len(_of(parts, a, b, "only", "gone"))
        shortest = len(a) + len(b) - 2 * _common(a, b)
        assert answer["whole"] is (shortest <= most)
        if answer["whole"]:
            assert edits == shortest
        whole += answer["whole"]
        assert all(one["kind"] != two["kind"] for one, two in itertools.pairwise(parts))
    assert 100 < whole < len(pairs)


def test_two_long_answers_without_a_common_token(tmp_path: Path) -> None:
    a, b = list(range(40_000)), list(range(40_000, 80_000))
    (answer,) = _diffs(tmp_path, [(a, b, 1500)])
    assert answer == {
        "parts": [{"kind": "gone", "from": 0, "to": 40_000}, {"kind": "only", "from": 0, "to": 40_000}],
        "whole": False,
    }
