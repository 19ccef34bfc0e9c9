"""`difference`: what changed in a run between two moments, as JSON values."""

from __future__ import annotations

from typing import Any

_PLAIN = ("phase", "steps", "version", "published", "weights_digest", "waits_for")


def difference(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Of two `facts_of`, whichever is the earlier. Counters as how much was added, all else as what it was and is.

    verdicts_left_out: those between that a moment does not remember any more.
    """
    was, now = sorted((one, other), key=lambda facts: facts["position"])
    counts = _added(was["counts"], now["counts"])
    decisions = [decision for decision in now["decisions"] if decision["position"] > was["position"]]
    verdicts = counts.get("groups_accepted", 0) + counts.get("groups_rejected", 0)
    left_out = verdicts - sum(decision["type"].startswith("group.") for decision in decisions)
    return {
        "run": now["run"],
        "from": {"position": was["position"], "at": was["at"]},
        "to": {"position": now["position"], "at": now["at"]},
        "events": now["position"] - was["position"],
        "seconds": (now["at"] - was["at"]) * 1e-9,
        "changed": {name: [was[name], now[name]] for name in _PLAIN if was[name] != now[name]},
        "backpressure": _moved(was["backpressure"], now["backpressure"]),
        "counts": counts,
        "rejections": _added(was["rejections"], now["rejections"]),
        "cursors": _moved(was["cursors"], now["cursors"]),
        "engines": _moved(*({e["engine"]: e["version"] for e in facts["engines"]} for facts in (was, now))),
        "groups": _groups(was, now, {d["about"] for d in decisions if d["type"] == "group.rejected"}, left_out),
        "decisions": decisions,
        "verdicts_left_out": left_out,
    }


def _moved(was: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    names = dict.fromkeys((*was, *now))
    return {name: [was.get(name), now.get(name)] for name in names if was.get(name) != now.get(name)}


def _added(was: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    return {name: value - was.get(name, 0) for name, value in now.items() if value != was.get(name, 0)}


def _groups(was: dict[str, Any], now: dict[str, Any], rejected: set[str], left_out: int) -> dict[str, Any]:
    """came: by id, with its phase; went: what became of it; moved: whose phase or samples are others."""
    before, after = ({g["group"]: g for g in facts["groups"]} for facts in (was, now))

    def fate(group: dict[str, Any]) -> str:
        if group["purpose"] != "train":
            return "evaluated"
        return "rejected" if group["group"] in rejected else "trained or rejected" if left_out else "trained"

    return {
        "came": {name: group["phase"] for name, group in after.items() if name not in before},
        "went": {name: fate(group) for name, group in before.items() if name not in after},
        "moved": {
            name: [_standing(before[name]), _standing(group)]
            for name, group in after.items()
            if name in before and _standing(before[name]) != _standing(group)
        },
    }


def _standing(group: dict[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in ("phase", "samples", "tokens")}
