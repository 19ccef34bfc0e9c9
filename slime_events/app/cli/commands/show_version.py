"""`show RUN --version V`: one set of weights: from what, where, who runs it, how good."""

from __future__ import annotations

from typing import Any

from slime_events.analysis.model import History, VersionHistory
from slime_events.app.cli.render.json_values import plain
from slime_events.app.cli.render.text import clock, fields, table, versions_text


def version_facts(history: History, version: VersionHistory) -> dict[str, Any]:
    """Publication, the step that made it, activations, evaluations of it, checkpoint."""
    number = version.version
    steps = [s.step for s in history.steps.values() if s.committed and s.committed.event.version == number]
    return {
        "version": number,
        "published": plain(version.published.event) if version.published else None,
        "published_at": version.published.at if version.published else None,
        "step": steps[0] if steps else None,
        "branched": plain(branched) if (branched := history.branched) and branched.version == number else None,
        "activations": [plain(said.event) for said in version.activations],
        "evals": [plain(said.event) for said in history.evals if said.event.version == number],
        "checkpoint": plain(version.checkpoint.event) if version.checkpoint else None,
    }


def version_text(facts: dict[str, Any]) -> str:
    """The same, for people."""
    published, checkpoint = facts["published"] or {}, facts["checkpoint"] or {}
    parent = published.get("parent")
    head = fields([
        ("version", facts["version"]),
        ("made by", _maker(facts, parent)),
        ("published", f"{clock(facts['published_at'])}, {published['kind']}, {published['bytes'] / 1e6:.1f} MB"
                      if published else "not published"),
        ("folder", published.get("url")),
        ("digest", published.get("digest")),
        ("checkpoint", checkpoint.get("url")),
    ])  # fmt: skip
    parts = [head]
    if facts["activations"]:
        rows = [(a["engine"], f"{a['seconds']:.3f}", f"{a['lag']:.3f}", a["resumed"]) for a in facts["activations"]]
        parts.append(table(("engine", "update s", "after publication s", "rollouts that went on"), rows))
    if facts["evals"]:
        scores = [
            (
                e["dataset"],
                f"{e['mean']:.3f}",
                e["samples"],
                e["failed"],
                versions_text(e),
            )
            for e in facts["evals"]
        ]
        parts.append(table(("eval", "mean", "samples", "failed", "answers by"), scores))
    return "\n\n".join(parts)


def _maker(facts: dict[str, Any], parent: int | None) -> str:
    if facts["step"] is not None:
        return f"step {facts['step']} from v{parent}"
    branched = facts["branched"]
    return f"{branched['run']}, which the run branches off from" if branched else "the run's beginning"
