"""A real run that is struck a few times keeps every promise. A process of its own, since it adopts orphans."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

KINDS = ("conductor", "nats", "grader")
"""Engines and trainers are killed in tests/run; their starts are what takes long."""


def test_a_run_that_is_struck_ends_as_one_that_is_not(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "tests.harness.chaos", "--kills", str(len(KINDS)), "--seed", "5", "--steps", "6"]
    done = subprocess.run(
        [*command, "--kinds", ",".join(KINDS), "--json", str(figures)],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    facts = json.loads(figures.read_text())
    assert facts["kills_by_kind"] == dict.fromkeys(sorted(KINDS), 1)
    assert facts["acked_tokens_lost"] == facts["samples_trained_twice"] == facts["prompts_skipped"] == 0
    assert facts["weights_digest"] == facts["weights_digest_without_kills"]
    assert facts["tokens_generated_again_without_kills"] == 0, "the count of generated tokens is exact"
