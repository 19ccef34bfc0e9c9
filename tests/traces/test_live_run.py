"""The spans that a real run sends while it is on are those of `trace export` afterwards, each once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from slime_events.app.cli.main import run_command
from tests.telemetry.collector import collecting
from tests.telemetry.span_files import read_spans

pytestmark = [pytest.mark.soak, pytest.mark.real, pytest.mark.timeout(900)]

CLI = (sys.executable, "-m", "slime_events.app.cli.main")


def test_a_demo_sends_the_spans_that_are_exported_later(tmp_path: Path) -> None:
    with collecting() as collector:
        endpoint = ("--otlp-endpoint", collector.endpoint)
        subprocess.run((*CLI, "demo", "--steps", "6", "--runs-dir", str(tmp_path / "runs"), *endpoint), check=True)
        live = Counter(collector.ids)
        assert run_command(["trace", "export", str(tmp_path / "runs" / "demo"), "--otlp", collector.endpoint]) == 0
        again = Counter(collector.ids) - live
    (tmp_path / "past").mkdir()
    words = ["trace", "export", str(tmp_path / "runs" / "demo"), "--out", str(tmp_path / "past" / "all.jsonl")]
    assert run_command(words) == 0
    past = Counter((span.trace, span.span) for span in read_spans(tmp_path / "past").spans)
    assert len(past) > 6 * 100
    assert live == past == again
