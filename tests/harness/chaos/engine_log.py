"""Tokens that SGLang has generated, by its own log: one line per forward pass, written before anything can be lost.

With `--sglang-log-level info --sglang-decode-log-interval 1` a scheduler says of every pass how many requests were in
it: a decode pass makes one token of each running request, a prefill pass one of each new sequence. The lines of a
killed scheduler stay in the run's logs, so that what it made and could not say any more is counted too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

FLAGS = ("--sglang-log-level", "info", "--sglang-decode-log-interval", "1")
PATTERN = "sglang-*.log"
_PASS = re.compile(r"(?:Decode batch.*?#running-req|Prefill batch.*?#new-seq): (\d+)")


def tokens_in_lines(lines: Iterable[str]) -> int:
    """Return the number of tokens that the passes in these lines have made."""
    return sum(int(match[1]) for line in lines if (match := _PASS.search(line)))


def tokens_generated(logs: Path) -> int:
    """Return the tokens of all engines of a run, dead ones included. logs: the run's folder of logs."""
    total = 0
    for path in logs.glob(PATTERN):
        with path.open(errors="replace") as lines:
            total += tokens_in_lines(lines)
    return total
