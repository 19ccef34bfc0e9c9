"""`show RUN --at POS --diff POS`: what changed between two moments, for people."""

from __future__ import annotations

from typing import Any

from slime_events.app.cli.commands.show_at import LAST_DECISIONS, decisions_text
from slime_events.app.cli.render.text import clock, duration, fields, shorten

SHOWN = 12
WIDTH = 40


def diff_text(facts: dict[str, Any]) -> str:
    """`difference` of two moments."""
    groups = facts["groups"]
    head = fields([
        ("run", facts["run"]),
        ("from", _place(facts["from"])),
        ("to", _place(facts["to"])),
        ("between", f"{facts['events']:,} events, {duration(facts['seconds'])}"),
    ])  # fmt: skip
    parts = [
        head,
        _section("changed", {**facts["changed"], **facts["backpressure"], **facts["cursors"]}, _was_is),
        _section("engines", facts["engines"], _was_is),
        _section("counts", {**facts["counts"], **_causes(facts["rejections"])}, lambda added: f"{added:+,}"),
        _section("groups that came", groups["came"], str),
        _section("groups that went", groups["went"], str),
        _section("groups that moved", groups["moved"], lambda pair: " -> ".join(map(_standing, pair))),
        _decisions(facts),
    ]
    return "\n\n".join(part for part in parts if part)


def _place(place: dict[str, Any]) -> str:
    return f"position {place['position']:,} at {clock(place['at'])}"


def _section(title: str, values: dict[str, Any], told: Any) -> str:
    if not values:
        return ""
    shown = [(name, told(value)) for name, value in list(values.items())[:SHOWN]]
    left = len(values) - len(shown)
    more = f"\n  and {left} more (--json has all)" if left else ""
    return f"{title}\n{fields(shown, '  ')}{more}"


def _was_is(pair: list[Any]) -> str:
    return " -> ".join("nothing" if value in (None, "") else shorten(str(value), WIDTH) for value in pair)


def _causes(rejections: dict[str, int]) -> dict[str, int]:
    return {f"rejected for {cause}": added for cause, added in rejections.items()}


def _standing(group: dict[str, Any]) -> str:
    samples = ", ".join(f"{n} {phase}" for phase, n in group["samples"].items())
    return f"{group['phase']} ({samples or 'no samples'}, {group['tokens']} tokens)"


def _decisions(facts: dict[str, Any]) -> str:
    found = facts["decisions"]
    if not found:
        return ""
    left = len(found) - len(found[-LAST_DECISIONS:])
    notes = [f"{left} more before these (--json has them)"] if left else []
    notes += [f"{facts['verdicts_left_out']} older verdicts are not kept here"] if facts["verdicts_left_out"] else []
    return "\n".join([decisions_text(found[-LAST_DECISIONS:]), *notes])
