"""Draw what `python -m benchmarks.algorithms --json FILE` wrote: `python docs/plot_algorithms.py FILE ... out.svg`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

WIDE = 4


def draw(outcomes: Sequence[dict[str, Any]], out: Path) -> None:
    """A panel for each algorithm: mean reward of each step's samples, and the greedy held-out evaluations."""
    plt.rcParams["svg.hashsalt"] = "slime-events"
    rows = -(-len(outcomes) // WIDE)
    figure, panels = plt.subplots(rows, WIDE, figsize=(9, 1.9 * rows), sharex=True, sharey=True, squeeze=False)
    for panel, outcome in zip(panels.flat, outcomes, strict=False):
        rewards, evals = outcome["rewards"], outcome["evals"]
        panel.plot(range(1, len(rewards) + 1), rewards, color="#1f5c99", linewidth=1)
        panel.plot([int(version) for version in evals], list(evals.values()), "o", color="#c4602a", markersize=4)
        panel.set_title(outcome["algorithm"], fontsize=8)
        panel.set_ylim(0, 1.03)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.25)
    for panel in panels.flat[len(outcomes) :]:
        panel.set_visible(False)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    *files, target = sys.argv[1:]
    draw([json.loads(line) for file in files for line in Path(file).read_text().splitlines()], Path(target))
