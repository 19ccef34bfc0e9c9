"""`show RUN --group G`: one prompt, its samples, the decision on them, and where they went."""

from __future__ import annotations

from typing import Any

from schemas.groups import GroupAccepted
from schemas.rewards import RewardFailed
from slime_events.analysis.model import GroupHistory, History, SampleHistory
from slime_events.app.cli.render.event_line import figures_text, spans_text
from slime_events.app.cli.render.json_values import plain
from slime_events.app.cli.render.text import block, clock, fields, shorten, table

TEXT_WIDTH = 60


def group_facts(history: History, group: GroupHistory) -> dict[str, Any]:
    """Prompt, samples, decision, step and weight version; null for what has not happened."""
    prompt = group.prompt
    return {
        "group": group.group,
        "submitted_at": prompt.at if prompt else None,
        "submitted_by": prompt.producer if prompt else None,
        "prompt": plain(prompt.event) if prompt else None,
        "samples": [sample_line(sample) for sample in history.members(group)],
        "decision": decision_facts(group),
        "step": group.step,
        "version": history.version_of_step(group.step),
    }


def sample_line(sample: SampleHistory) -> dict[str, Any]:
    """One sample in short."""
    done = sample.completed.event if sample.completed else None
    failure = sample.reward.event.message if sample.reward and isinstance(sample.reward.event, RewardFailed) else None
    if done is None and sample.interruptions:
        failure = getattr(sample.interruptions[-1].event, "message", None)
    return {
        "sample": sample.sample,
        "reward": sample.value,
        "length": sample.length,
        "stop": done.stop.value if done else None,
        "versions": spans_text(sample.spans),
        "attempts": len(sample.requests),
        "text": done.text if done else "",
        "failure": failure,
    }


def decision_facts(group: GroupHistory) -> dict[str, Any] | None:
    """Accepted or rejected, by which filter, on which figures, why."""
    if group.decision is None:
        return None
    event = group.decision.event
    return {
        "accepted": isinstance(event, GroupAccepted),
        "cause": None if isinstance(event, GroupAccepted) else event.cause.value,
        "reason": event.reason,
        "filter": event.filter,
        "filter_digest": event.filter_digest,
        "figures": dict(event.figures),
        "rewards": list(event.rewards),
        "at": group.decision.at,
    }


def decision_text(decision: dict[str, Any] | None) -> str:
    """One sentence on the decision."""
    if decision is None:
        return "not decided yet"
    what = "accepted" if decision["accepted"] else f"rejected ({decision['cause']})"
    why = f": {decision['reason']}" if decision["reason"] else ""
    figures = f", {figures_text(decision['figures'])}" if decision["figures"] else ""
    by = f" by {decision['filter']}" if decision["filter"] != "none" else ", no filter set"
    return f"{what}{by}{why}{figures}"


def fate_text(step: int | None, version: int | None) -> str:
    """Which step trained it, and which weights came of it."""
    if step is None:
        return "in no batch"
    return f"step {step}" + (f" -> weight version {version}" if version is not None else ", not committed yet")


def group_text(facts: dict[str, Any]) -> str:
    """The same, for people."""
    prompt = facts["prompt"] or {}
    head = fields([
        ("group", facts["group"]),
        ("from", _source(prompt)),
        ("submitted", f"{clock(facts['submitted_at'])} by {facts['submitted_by']}" if prompt else None),
        ("label", prompt.get("label")),
        ("metadata", prompt.get("metadata") or None),
        ("decision", decision_text(facts["decision"])),
        ("trained in", fate_text(facts["step"], facts["version"])),
    ])  # fmt: skip
    parts = [head, _messages(prompt), f"prompt\n{block(prompt.get('text', ''))}", _samples(facts["samples"])]
    return "\n\n".join(part for part in parts if part)


def _source(prompt: dict[str, Any]) -> str | None:
    if not prompt:
        return None
    source = prompt["source"]
    if source["key"]:
        return f"{prompt['dataset']}, key {source['key']}"
    return f"{prompt['dataset']}, {source['path']}:{source['line']}, epoch {source['epoch']}"


def _messages(prompt: dict[str, Any]) -> str:
    lines = [f"{m.get('role', '?')}: {m.get('content', '')}" for m in prompt.get("messages") or ()]
    return "messages\n" + block("\n".join(lines)) if lines else ""


def _samples(samples: list[dict[str, Any]]) -> str:
    rows = [
        (s["sample"], s["reward"], s["length"], s["stop"], s["versions"],
         shorten(s["failure"] or s["text"], TEXT_WIDTH))
        for s in samples
    ]  # fmt: skip
    return table(("sample", "reward", "length", "stop", "versions", "text"), rows)
