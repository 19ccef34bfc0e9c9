"""`show RUN --step N`: what was trained on, and what came of it."""

from __future__ import annotations

from typing import Any

from schemas.batches import BatchSealed
from schemas.groups import GroupAccepted
from slime_events.analysis.model import History, StepHistory
from slime_events.app.cli.render.event_line import spans_text
from slime_events.app.cli.render.json_values import plain
from slime_events.app.cli.render.text import clock, fields, shorten, table

LABEL_WIDTH = 24


def step_facts(history: History, step: StepHistory) -> dict[str, Any]:
    """Batch, samples in training order, metrics and digests. `committed` is null while it trains."""
    batch = step.sealed.event
    version = history.version_of_step(step.step)
    return {
        "step": step.step,
        "sealed_at": step.sealed.at,
        "batch_digest": batch.digest,
        "oldest_version": batch.oldest_version,
        "groups": [_group(history, group) for group in batch.groups],
        "samples": _samples(history, batch),
        "committed": plain(step.committed.event) if step.committed else None,
        "committed_at": step.committed.at if step.committed else None,
        "version": version,
    }


def _group(history: History, group: str) -> dict[str, Any]:
    found = history.groups[group]
    accepted = found.decision.event if found.decision else None
    rewards = accepted.rewards if isinstance(accepted, GroupAccepted) else ()
    prompt = found.prompt.event if found.prompt else None
    return {
        "group": group,
        "dataset": prompt.dataset if prompt else "",
        "label": prompt.label if prompt else None,
        "rewards": list(rewards),
    }


def _samples(history: History, batch: BatchSealed) -> list[dict[str, Any]]:
    rows = []
    for sample, raw, reward in zip(batch.samples, batch.raw_rewards, batch.rewards, strict=True):
        found = history.samples.get(sample)
        done = found.completed.event if found and found.completed else None
        rows.append({
            "sample": sample,
            "reward": raw,
            "normalised": reward,
            "length": found.length if found else 0,
            "stop": done.stop.value if done else None,
            "versions": spans_text(found.spans) if found else "",
            "digest": done.digest if done else "",
        })  # fmt: skip
    return rows


def step_text(facts: dict[str, Any]) -> str:
    """The same, for people."""
    parts = [_head(facts), _groups(facts), _sample_table(facts)]
    if facts["committed"]:
        parts.append(_numbers("metrics", facts["committed"]["metrics"]))
        parts.append(_numbers("seconds", facts["committed"]["seconds"]))
    return "\n\n".join(part for part in parts if part)


def _head(facts: dict[str, Any]) -> str:
    done = facts["committed"] or {}
    trained = None
    if done:
        trained = f"v{done['parent_version']} -> v{done['version']} at {clock(facts['committed_at'])}"
    return fields([
        ("step", facts["step"]),
        ("sealed", f"{clock(facts['sealed_at'])}, oldest weights v{facts['oldest_version']}"),
        ("trained", trained or "not yet"),
        ("size", f"{len(facts['groups'])} groups, {len(facts['samples'])} samples"),
        ("tokens", done.get("tokens")),
        ("batch", facts["batch_digest"]),
        ("weights", done.get("weights_digest")),
        ("optimizer", done.get("optimizer_digest")),
    ])  # fmt: skip


def _groups(facts: dict[str, Any]) -> str:
    rows = [
        (g["group"], g["dataset"], shorten(g["label"] or "", LABEL_WIDTH), " ".join(f"{r:g}" for r in g["rewards"]))
        for g in facts["groups"]
    ]
    return table(("group", "from", "label", "rewards"), rows)


def _sample_table(facts: dict[str, Any]) -> str:
    rows = [
        (s["sample"], f"{s['reward']:.3f}", f"{s['normalised']:.3f}", s["length"], s["stop"], s["versions"],
         s["digest"][:12])
        for s in facts["samples"]
    ]  # fmt: skip
    return table(("sample", "reward", "normalised", "length", "stop", "versions", "digest"), rows)


def _numbers(title: str, numbers: dict[str, float]) -> str:
    return f"{title}\n{fields(sorted(numbers.items()), '  ')}" if numbers else ""
