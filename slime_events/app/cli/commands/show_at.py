"""`show RUN --at`: the whole system at one position of its log, for people."""

from __future__ import annotations

from typing import Any

from slime_events.app.cli.render.event_line import figures_text
from slime_events.app.cli.render.text import clock, duration, fields, moment, shorten, table

LAST_DECISIONS = 12
ROLLOUTS = 8
"""Rollouts of one engine, and groups in one phase, that are shown one by one."""
REASON_WIDTH = 60


def at_text(facts: dict[str, Any], event: str = "") -> str:
    """`facts_of` a moment. event: the line of the event there."""
    parts = [
        _head(facts, event),
        _engines(facts),
        _rollouts(facts),
        _groups(facts["groups"]),
        decisions_text(facts["decisions"][-LAST_DECISIONS:]),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(facts: dict[str, Any], event: str) -> str:
    counts, pressure = facts["counts"], facts["backpressure"]
    wanted = f" of {facts['steps_wanted']}" if facts["steps_wanted"] else ""
    room = "" if pressure["room"] is None else f" of {pressure['room']} that there is room for"
    decided = f"{counts['groups_accepted']} accepted, {counts['groups_rejected']} rejected"
    return fields([
        ("run", facts["run"]),
        ("position", f"{facts['position']:,} of {facts['end']:,}"),
        ("time", f"{moment(facts['at'])}, {duration(facts['seconds'])} after the start"),
        ("event", event.strip()),
        ("phase", facts["phase"] + (f": {facts['failure']}" if facts["failure"] else "")),
        ("waits for", facts["waits_for"]),
        ("steps", f"{facts['steps']}{wanted} committed"),
        ("weights", f"version {facts['version']} {facts['weights_digest'][:12]}, published {facts['published']}"),
        ("open", f"{pressure['open']} groups{room}, {pressure['unsealed']} in no batch yet, "
                 f"{pressure['prompts_waiting']} prompts wait"),
        ("staleness", _staleness(facts["staleness"])),
        ("training", "\n".join(f"step {s['step']}: {len(s['groups'])} groups" for s in facts["sealed"])),
        ("evaluating", "\n".join(f"{e['dataset']} of version {e['version']}: {e['groups']} groups"
                                 for e in facts["evals"])),
        ("groups", f"{counts['groups_requested']} asked for, {decided}, {counts['groups_trained']} trained on"),
        ("samples", f"{counts['samples_completed']} completed, {counts['samples_failed']} failed, "
                    f"{counts['rewards_failed']} ungraded, {counts['suspensions']} rests"),
        ("tokens", f"{counts['response_tokens']:,} generated"),
        ("cursors", "\n".join(f"{path} {place}" for path, place in facts["cursors"].items())),
    ])  # fmt: skip


def _staleness(staleness: dict[str, Any]) -> str | None:
    behind = ", ".join(f"{n} groups {versions} behind" for versions, n in staleness["behind"].items())
    bound = "" if staleness["bound"] is None else f" (bound {staleness['bound']})"
    return f"{behind}{bound}" if behind else None


def _engines(facts: dict[str, Any]) -> str:
    rows = [
        (e["engine"], _version(e["version"]), len(e["rollouts"]), sum(r["tokens"] for r in e["rollouts"]))
        for e in facts["engines"]
    ]
    return table(("engine", "runs", "rollouts", "tokens so far"), rows) if rows else ""


def _rollouts(facts: dict[str, Any]) -> str:
    """What each engine is on, and what none has begun as far as the log says."""
    rows, left = [], 0
    for rollouts in (*(e["rollouts"] for e in facts["engines"]), facts["queued"]):
        shown = sorted(rollouts, key=lambda rollout: -rollout["seconds"])[:ROLLOUTS]
        left += len(rollouts) - len(shown)
        rows += [
            (r["sample"], _doing(r), r["tokens"], _weights(r), r["attempt"], duration(max(0.0, r["seconds"])))
            for r in shown
        ]
    head = ("under way", "where", "tokens", "weights", "attempt", "since the request")
    return _with_rest(table(head, rows), left, "younger rollouts") if rows else ""


def _doing(rollout: dict[str, Any]) -> str:
    engine = rollout["engine"]
    if engine is None:
        return "in the queue"
    if not rollout["begun"]:
        return f"waits, later on {engine}"
    return f"{engine} (said later)" if rollout["said_later"] else str(engine)


def _weights(rollout: dict[str, Any]) -> str:
    if rollout["oldest"] is None:
        return f"none yet, v{rollout['min_version']} or newer"
    if rollout["oldest"] == rollout["newest"]:
        return f"v{rollout['newest']}"
    return f"v{rollout['oldest']} to v{rollout['newest']}"


def _version(version: int | None) -> str:
    return "no weights" if version is None else f"v{version}"


def _groups(groups: list[dict[str, Any]]) -> str:
    rows, left, seen = [], 0, dict.fromkeys(group["phase"] for group in groups)
    for phase in seen:
        members = [group for group in groups if group["phase"] == phase]
        left += max(0, len(members) - ROLLOUTS)
        rows += [
            (
                g["group"],
                g["phase"],
                ", ".join(f"{n} {phase}" for phase, n in g["samples"].items()),
                g["tokens"],
                " ".join(f"{reward:g}" for reward in g["rewards"]),
                None if g["oldest"] is None else f"v{g['oldest']}",
                g["behind"],
                None if g["seconds"] is None else duration(max(0.0, g["seconds"])),
            )
            for g in members[:ROLLOUTS]
        ]
    head = ("open group", "phase", "samples", "tokens", "rewards", "oldest", "behind", "age")
    return _with_rest(table(head, rows), left, "open groups") if rows else ""


def decisions_text(decisions: list[dict[str, Any]]) -> str:
    """The oldest first."""
    rows = [
        (
            d["position"],
            clock(d["at"]),
            d["type"],
            d["about"],
            " ".join(p for p in (shorten(d["reason"], REASON_WIDTH), figures_text(d["figures"])) if p),
        )
        for d in decisions
    ]
    return table(("position", "time", "decided", "about", "why, and on what"), rows) if rows else ""


def _with_rest(shown: str, left: int, what: str) -> str:
    return f"{shown}\nand {left} more {what} (--json has all)" if left else shown
