"""The text after a demo: its result, what that means, the folder, and commands to try next."""

from collections.abc import Mapping
from typing import Any

from slime_events.model.progress import WINDOW

HONEST = {
    "digits4": (
        "The model learned to work before it answers. The base checkpoint was trained to solve such chains, and then\n"
        "to answer most of them without the last term, which left room to improve. So GRPO recovered a skill that the\n"
        "model had: it is not new arithmetic."
    ),
    "arithmetic": (
        "A few steps on a real pretrained model: it answers with a bare number more often, and is surer of sums that\n"
        "it half knew. There are only 121 sums, a fifth held out, so this shows that training works and little more."
    ),
}
GAIN = {"digits4": 0.1, "arithmetic": 0.01}
"""Gain in the held-out score, or without one in the reward, below which a result may be chance at 128 samples."""
TOO_LITTLE = "These steps are too few to see the model learn: run the demo with its default number of steps."


def closing_words(summary: Mapping[str, Any], command: str = "slime-events") -> str:
    """Return the closing text of a demo from its `summary.json`. command: the name of `slime-events` in this shell.

    Required: reward_first, reward_last, rewards (by step), weight_versions, events, seconds. Optional: run, folder,
    task (`digits4` or `arithmetic`, if no flag changed the task), eval_first and eval_last (greedy, held-out),
    response_tokens_first and response_tokens_last, sample (an id to show).
    """
    run = summary.get("run", "demo")
    folder = summary.get("folder", f"slime-runs/{run}")
    parts = [
        _reached(summary),
        _learned(summary),
        f"The run's files are in {folder}: log, archive, weights.",
        _next(run, summary.get("sample"), command),
    ]
    return "\n\n".join(part for part in parts if part)


def _learned(summary: Mapping[str, Any]) -> str:
    """Return what the model learned on the demo's own task; nothing for another task."""
    task = summary.get("task")
    if task not in HONEST:
        return ""
    figure = "eval" if {"eval_first", "eval_last"} <= summary.keys() else "reward"
    gain = summary[f"{figure}_last"] - summary[f"{figure}_first"]
    return HONEST[task] if gain >= GAIN[task] else TOO_LITTLE


def _reached(summary: Mapping[str, Any]) -> str:
    rewards = summary["rewards"]
    if len(rewards) == 1:
        reward = f"{rewards[0]:.2f}  (one step)"
    elif len(rewards) < 2 * WINDOW:
        reward = f"{rewards[0]:.2f} -> {rewards[-1]:.2f}  (first and last step)"
    else:
        reward = f"{summary['reward_first']:.2f} -> {summary['reward_last']:.2f}  (means of five steps)"
    lines = [f"reward            {reward}"]
    if "eval_last" in summary:
        first = f"{summary['eval_first']:.2f} -> " if "eval_first" in summary else ""
        made_by = f", answers by {summary['eval_last_by']}" if summary.get("eval_last_by") else ""
        how = ("greedy, questions never trained on" if summary.get("task") else "mean of the last set") + made_by
        lines.append(f"held-out          {first}{summary['eval_last']:.2f}  ({how})")
    if len(rewards) > 1 and {"response_tokens_first", "response_tokens_last"} <= summary.keys():
        first, last = summary["response_tokens_first"], summary["response_tokens_last"]
        lines.append(f"answer length     {first:.0f} -> {last:.0f} tokens")
    lines.append(
        f"{summary['weight_versions']} weight versions, {summary['events']:,} events, {summary['seconds']:.0f} seconds"
    )
    return "\n".join(lines)


def _next(run: str, sample: str | None, program: str) -> str:
    commands = (
        (f"{program} console {run}", "pages over the run: metrics, samples, rollouts token by token"),
        (f"{program} show {run}", "the run, step by step"),
        (f"{program} show {run} --sample {sample or 'ID'}", "one rollout: text, log-probs, reward, fate"),
        (f"{program} demo --model smollm2-135m", "the demo on a real pretrained model")
        if run != "smollm2-135m"
        else (f"{program} demo", "the tiny model, which learns visibly"),
    )
    width = max(len(command) for command, _ in commands)
    return "Try next:\n" + "\n".join(f"  {command:<{width}}  {what}" for command, what in commands)
