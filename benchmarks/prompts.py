"""Measure the conductor's memory for a prompt file of a million lines, indexed and drawn from in shuffled order.

A separate process measures, after it has imported and drawn once, so that only the file's size counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.figure import Better, Figure

LINES = 1_000_000
TAKES = 1_000
TAKEN = 16
DEADLINE_S = 300.0


def measure(lines: int = LINES, takes: int = TAKES) -> list[Figure]:
    """Return the growth of the resident memory, in megabytes, from a file of ten lines to one of `lines`."""
    with tempfile.TemporaryDirectory() as name:
        small, large = Path(name) / "small.jsonl", Path(name) / "large.jsonl"
        write_prompts(small, 10)
        write_prompts(large, lines)
        command = [sys.executable, "-m", "benchmarks.prompts", str(small), str(large), str(takes)]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout
    result = json.loads(output)
    return [
        Figure(
            name=f"prompt file of {lines:,} lines, memory",
            value=result["bytes"] / 1e6,
            unit="MB",
            target=50.0,
            better=Better.LOWER,
            note=f"indexed in {result['opened']:.1f} s, {takes} takes of {TAKEN} in {result['taken']:.1f} s",
        )
    ]


def write_prompts(path: Path, lines: int) -> None:
    """Write questions of about 80 characters."""
    with path.open("w", encoding="utf-8") as file:
        for i in range(lines):
            file.write(
                f'{{"prompt": "Question {i}: what is {i % 997} plus {i % 991}?", "label": "{i % 997 + i % 991}"}}\n'
            )


def main() -> None:
    """Measure in this process, and print bytes and seconds."""
    from slime_events.core.config.data import DataSettings
    from slime_events.loop.prompts.source import PromptSource

    def draw(path: str, takes: int) -> tuple[PromptSource, float, float]:
        begun = time.perf_counter()
        settings = DataSettings(prompt_data=path, input_key="prompt", label_key="label", rollout_shuffle=True)
        source, position = PromptSource(settings), 0
        opened = time.perf_counter()
        for _ in range(takes):
            position += len(source.take(position, TAKEN))
        return source, opened - begun, time.perf_counter() - opened

    small, large, takes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    process = psutil.Process()
    draw(small, 3)
    before = process.memory_info().rss
    source, opened, taken = draw(large, takes)
    grown = process.memory_info().rss - before
    print(json.dumps({"bytes": grown, "rows": len(source), "opened": opened, "taken": taken}))


if __name__ == "__main__":
    main()
