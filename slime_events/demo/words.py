"""What a demo says when it has ended: what was reached, what that means, where it lies, what to try next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HONEST = {
    "digits4": (
        "What it learned is to think before it answers. The base was taught to work such chains out and then to blurt\n"
        "most answers without their last term, so that there is room: GRPO brought back a skill it had. It is not new\n"
        "arithmetic."
    ),
    "arithmetic": (
        "A few steps on a real pretrained model: it gives a bare number more often, and is surer of sums that it\n"
        "half knew. There are only 121 of them, a fifth held out, so this shows that training works and little more."
    ),
}


def closing_words(summary: Mapping[str, Any], command: str = "slime-events") -> str:
    """The closing text of a demo, from its `summary.json`. command: how this shell reaches us.

    Required: reward_first, reward_last, weight_versions, events, seconds. Read where there: run, folder, task
    (`digits4` or `arithmetic`), eval_first and eval_last (greedy, held-out), response_tokens_first and
    response_tokens_last (means over five steps), sample (an id worth showing).
    """
    run = summary.get("run", "demo")
    folder = summary.get("folder", f"slime-runs/{run}")
    parts = [
        _reached(summary),
        HONEST[summary.get("task", "digits4")],
        f"Everything lies in {folder}: the log, the archive, the weights, the traces.",
        _next(run, summary.get("sample"), command),
    ]
    return "\n\n".join(parts)


def _reached(summary: Mapping[str, Any]) -> str:
    lines = [f"reward            {summary['reward_first']:.2f} -> {summary['reward_last']:.2f}  (means of five steps)"]
    if "eval_last" in summary:
        first = f"{summary['eval_first']:.2f} -> " if "eval_first" in summary else ""
        lines.append(f"held-out          {first}{summary['eval_last']:.2f}  (greedy, questions never trained on)")
    if "response_tokens_first" in summary and "response_tokens_last" in summary:
        first, last = summary["response_tokens_first"], summary["response_tokens_last"]
        lines.append(f"answer length     {first:.0f} -> {last:.0f} tokens")
    lines.append(
        f"{summary['weight_versions']} weight versions, {summary['events']:,} events, {summary['seconds']:.0f} seconds"
    )
    return "\n".join(lines)


def _next(run: str, sample: str | None, program: str) -> str:
    commands = (
        (f"{program} show {run}", "the run, step by step"),
        (f"{program} show {run} --sample {sample or 'ID'}", "one rollout: text, log-probs, reward, fate"),
        (f"{program} demo --model smollm2-135m", "the same on a real pretrained model")
        if run != "smollm2-135m"
        else (f"{program} demo", "the tiny model that plainly learns"),
    )
    width = max(len(command) for command, _ in commands)
    return "Try next:\n" + "\n".join(f"  {command:<{width}}  {what}" for command, what in commands)
