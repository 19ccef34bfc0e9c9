"""Draw a run's reward curve: `python docs/plot_reward.py slime-runs/demo/summary.json docs/reward-curve.svg`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt


def draw(summary: dict[str, object], out: Path) -> None:
    """Mean reward of each step's samples, its 5-step mean, and the greedy held-out evaluations."""
    rewards = summary["rewards"]
    assert isinstance(rewards, list)
    means = [sum(rewards[max(0, i - 4) : i + 1]) / len(rewards[max(0, i - 4) : i + 1]) for i in range(len(rewards))]
    evals = summary["evals"]
    assert isinstance(evals, list)
    plt.rcParams["svg.hashsalt"] = "slime-events"
    figure, axes = plt.subplots(figsize=(7, 3))
    steps = range(1, len(rewards) + 1)
    axes.plot(steps, rewards, color="#b9c7d6", linewidth=1, label="reward of each step (sampled)")
    axes.plot(steps, means, color="#1f5c99", linewidth=2, label="mean over five steps")
    axes.plot([e["version"] for e in evals], [e["mean"] for e in evals], "o", color="#c4602a", label="held-out, greedy")
    axes.set_xlabel("weight version")
    axes.set_ylim(0, 1.03)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
