"""`show RUN --at POS`: the whole system at one position of its log; with `--diff`, the changes between two."""

import contextlib
import hashlib
import sys
from collections.abc import Callable
from typing import Any

from schemas.runs import RunResumed
from slime_events.analysis.timetravel.log_position import Anchor, LogPosition, parse_position
from slime_events.analysis.timetravel.moment import Moment
from slime_events.analysis.timetravel.timeline import Timeline
from slime_events.analysis.timetravel.view import difference, facts_of, look_ahead
from slime_events.app.cli.render.event_line import event_line
from slime_events.app.cli.render.text import (
    clock,
    duration,
    fields,
    figures_text,
    moment,
    paragraphs,
    shorten,
    table,
    versions_range,
)
from slime_events.app.launch.run_status import RunStatus, read_status
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.run import RunPhase
from storage.archive.index import cache_folder

LAST_DECISIONS = 12
ROLLOUTS = 8
"""Most rollouts of one engine, and groups in one phase, that are listed."""
REASON_WIDTH = 60
CHANGES = 12
"""Most changes of one kind that are listed."""
VALUE_WIDTH = 40


async def moment_facts(
    opened: OpenedRun, at: str, step: int = 0, diff: str | None = None
) -> tuple[dict[str, Any], str]:
    """Return the run at position `at` plus `step` events, or its changes up to `diff`, as JSON values and as text.

    Raises InvalidValue for a text that is not a position, RunNotFound if the run has no such position.
    """
    cached = cache_folder() / "slime-events" / "seek" / hashlib.sha256(opened.where.encode()).hexdigest()[:24]
    index = opened.folder.seek if opened.folder else cached  # an archive has no run folder
    timeline = await Timeline(opened.log, index).open(_announce_index)
    there = await timeline.seek(parse_position(at))
    if step:
        there = await timeline.seek(LogPosition(Anchor.POSITION, min(max(there.position + step, 1), timeline.end)))
    facts = facts_of(there, timeline.end, await look_ahead(opened.log, there))
    facts |= await _without_launcher(opened, there, timeline.end)
    if diff is None:
        event = event_line(there.last) if there.last else ""
        decisions = decisions_text(facts["decisions"][-LAST_DECISIONS:])
        parts = (_head(facts, event), _engines(facts), _rollouts(facts), _groups(facts["groups"]), decisions)
        return facts, paragraphs(*parts)
    other = await timeline.seek(parse_position(diff))
    other_facts = facts_of(other, timeline.end) | await _without_launcher(opened, other, timeline.end)
    facts = difference(facts, other_facts)
    return facts, diff_text(facts)


async def _without_launcher(opened: OpenedRun, moment: Moment, end: int) -> dict[str, Any]:
    """Return the facts to replace if a launcher died at this moment: at the end of the log or before a resumption."""
    if moment.state.phase is not RunPhase.RUNNING:
        return {}
    if moment.position == end:
        status = await read_status(opened)
        return {} if status is RunStatus.RUNNING else {"phase": status.value, "waits_for": None}
    async with contextlib.aclosing(opened.log.read(moment.position + 1)) as read:  # type: ignore[type-var]
        resumed = isinstance((await anext(read)).envelope.event, RunResumed)
    return {"phase": RunStatus.KILLED.value, "waits_for": None} if resumed else {}


def _announce_index(events: int) -> None:
    sys.stderr.write(f"reading {events:,} events once to build an index; later calls are fast\n")


def _head(facts: dict[str, Any], event: str) -> str:
    counts, pressure = facts["counts"], facts["backpressure"]
    target = f" of {facts['steps_wanted']}" if facts["steps_wanted"] else ""
    room = "" if pressure["room"] is None else f" of at most {pressure['room']}"
    decided = f"{counts['groups_accepted']} accepted, {counts['groups_rejected']} rejected"
    behind = ", ".join(f"{n} groups {versions} behind" for versions, n in facts["staleness"]["behind"].items())
    bound = facts["staleness"]["bound"]
    return fields([
        ("run", facts["run"]),
        ("position", f"{facts['position']:,} of {facts['end']:,}"),
        ("time", f"{moment(facts['at'])}, {duration(facts['seconds'])} after the start"),
        ("event", event.strip()),
        ("phase", facts["phase"] + (f": {facts['failure']}" if facts["failure"] else "")),
        ("waits for", facts["waits_for"]),
        ("steps", f"{facts['steps']}{target} committed"),
        ("weights", f"version {facts['version']} {facts['weights_digest'][:12]}, published {facts['published']}"),
        ("open", f"{pressure['open']} groups{room}, {pressure['unsealed']} in no batch yet, "
                 f"{pressure['prompts_waiting']} prompts wait"),
        ("staleness", behind and behind + ("" if bound is None else f" (bound {bound})")),
        ("training", "\n".join(f"step {s['step']}: {len(s['groups'])} groups" for s in facts["sealed"])),
        ("evaluating", "\n".join(f"{e['dataset']} of version {e['version']}: {e['groups']} groups"
                                 for e in facts["evals"])),
        ("groups", f"{counts['groups_requested']} requested, {decided}, {counts['groups_trained']} trained on"),
        ("samples", f"{counts['samples_completed']} completed, {counts['samples_failed']} failed, "
                    f"{counts['rewards_failed']} ungraded, {counts['suspensions']} suspended"),
        ("tokens", f"{counts['response_tokens']:,} generated"),
        ("cursors", "\n".join(f"{path} {drawn}" for path, drawn in facts["cursors"].items())),
    ])  # fmt: skip


def _engines(facts: dict[str, Any]) -> str:
    rows = [
        (e["engine"], "no weights" if e["version"] is None else f"v{e['version']}", len(e["rollouts"]),
         sum(r["tokens"] for r in e["rollouts"]))
        for e in facts["engines"]
    ]  # fmt: skip
    return table(("engine", "runs", "rollouts", "tokens so far"), rows) if rows else ""


def _rollouts(facts: dict[str, Any]) -> str:
    """Return a table of the rollouts that engines generate and of those that, by the log, none has begun."""
    rows, left = [], 0
    for rollouts in (*(e["rollouts"] for e in facts["engines"]), facts["queued"]):
        shown = sorted(rollouts, key=lambda rollout: -rollout["seconds"])[:ROLLOUTS]
        left += len(rollouts) - len(shown)
        rows += [
            (r["sample"], _doing(r), r["tokens"], _weights(r), r["attempt"], duration(max(0.0, r["seconds"])))
            for r in shown
        ]
    head = ("under way", "where", "tokens", "weights", "attempt", "since the request")
    return table(head, rows) + _more(left, "younger rollouts") if rows else ""


def _doing(rollout: dict[str, Any]) -> str:
    engine = rollout["engine"]
    if engine is None:
        return "in the queue"
    if not rollout["begun"]:
        return f"waits, later on {engine}"
    return f"{engine} (known later)" if rollout["said_later"] else str(engine)


def _weights(rollout: dict[str, Any]) -> str:
    if rollout["oldest"] is None:
        return f"none yet, v{rollout['min_version']} or newer"
    return versions_range(rollout["oldest"], rollout["newest"])


def _groups(groups: list[dict[str, Any]]) -> str:
    rows, left = [], 0
    for phase in dict.fromkeys(group["phase"] for group in groups):
        members = [group for group in groups if group["phase"] == phase]
        left += max(0, len(members) - ROLLOUTS)
        rows += [
            (g["group"], phase, _samples(g), g["tokens"], " ".join(f"{reward:g}" for reward in g["rewards"]),
             None if g["oldest"] is None else f"v{g['oldest']}", g["behind"],
             None if g["seconds"] is None else duration(max(0.0, g["seconds"])))
            for g in members[:ROLLOUTS]
        ]  # fmt: skip
    head = ("open group", "phase", "samples", "tokens", "rewards", "oldest", "behind", "age")
    return table(head, rows) + _more(left, "open groups") if rows else ""


def _samples(group: dict[str, Any]) -> str:
    return ", ".join(f"{n} {phase}" for phase, n in group["samples"].items())


def decisions_text(decisions: list[dict[str, Any]]) -> str:
    """Return decisions as a table, the oldest first."""
    rows = [
        (d["position"], clock(d["at"]), d["type"], d["about"],
         " ".join(filter(None, (shorten(d["reason"], REASON_WIDTH), figures_text(d["figures"])))))
        for d in decisions
    ]  # fmt: skip
    return table(("position", "time", "decided", "about", "reason and figures"), rows) if rows else ""


def _more(left: int, what: str = "", indent: str = "") -> str:
    return f"\n{indent}and {left} more{what and ' ' + what} (--json has all)" if left > 0 else ""


def diff_text(facts: dict[str, Any]) -> str:
    """Return the difference of two moments as text."""
    groups = facts["groups"]
    counts = facts["counts"] | {f"rejected for {cause}": added for cause, added in facts["rejections"].items()}
    head = fields([
        ("run", facts["run"]),
        ("from", _position_text(facts["from"])),
        ("to", _position_text(facts["to"])),
        ("between", f"{facts['events']:,} events, {duration(facts['seconds'])}"),
    ])  # fmt: skip
    return paragraphs(
        head,
        _section("changed", facts["changed"] | facts["backpressure"] | facts["cursors"], _was_is),
        _section("engines", facts["engines"], _was_is),
        _section("counts", counts, "{:+,}".format),
        _section("groups opened", groups["came"], str),
        _section("groups closed", groups["went"], str),
        _section("groups that moved", groups["moved"], lambda pair: " -> ".join(map(_phase_text, pair))),
        _decisions(facts),
    )


def _position_text(position: dict[str, Any]) -> str:
    return f"position {position['position']:,} at {clock(position['at'])}"


def _section(title: str, values: dict[str, Any], text_of: Callable[[Any], str]) -> str:
    shown = [(name, text_of(value)) for name, value in list(values.items())[:CHANGES]]
    return f"{title}\n{fields(shown, '  ')}{_more(len(values) - CHANGES, indent='  ')}" if values else ""


def _was_is(pair: list[Any]) -> str:
    return " -> ".join("nothing" if value in (None, "") else shorten(str(value), VALUE_WIDTH) for value in pair)


def _phase_text(group: dict[str, Any]) -> str:
    return f"{group['phase']} ({_samples(group) or 'no samples'}, {group['tokens']} tokens)"


def _decisions(facts: dict[str, Any]) -> str:
    shown, left = decisions_text(facts["decisions"][-LAST_DECISIONS:]), len(facts["decisions"]) - LAST_DECISIONS
    if shown and left > 0:
        shown += f"\n{left} more before these (--json has them)"
    if shown and facts["verdicts_left_out"]:
        shown += f"\n{facts['verdicts_left_out']} older verdicts are not kept here"
    return shown
