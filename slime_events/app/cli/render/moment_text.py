"""A moment of a run, and the difference between two moments, for a terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from slime_events.analysis.timetravel.moment import RunDecision
from slime_events.analysis.timetravel.moment_diff import Change, GroupProgress, MomentDiff, PointInTime
from slime_events.analysis.timetravel.moment_view import EngineView, MomentView, OpenGroup, OpenRollout
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
from slime_events.core.state.group import SamplePhase
from storage.log import Recorded

LAST_DECISIONS = 12
ROLLOUTS = 8
"""Most rollouts of one engine, and groups in one phase, that are listed."""
REASON_WIDTH = 60
CHANGES = 12
"""Most changes of one kind that are listed."""
VALUE_WIDTH = 40
T = TypeVar("T")


def moment_text(view: MomentView, last: Recorded | None) -> str:
    """Return a moment as text for a terminal. last: the event at its position; None if unknown."""
    event = event_line(last) if last else ""
    decisions = decisions_text(view.decisions[-LAST_DECISIONS:])
    return paragraphs(_head(view, event), _engines(view.engines), _rollouts(view), _groups(view.groups), decisions)


def _head(view: MomentView, event: str) -> str:
    counts, pressure, staleness = view.counts, view.backpressure, view.staleness
    target = f" of {view.steps_wanted}" if view.steps_wanted else ""
    room = "" if pressure.room is None else f" of at most {pressure.room}"
    decided = f"{counts.groups_accepted} accepted, {counts.groups_rejected} rejected"
    behind = ", ".join(f"{n} groups {versions} behind" for versions, n in staleness.behind.items())
    bound = "" if staleness.bound is None else f" (bound {staleness.bound})"
    return fields([
        ("run", view.run),
        ("position", f"{view.position:,} of {view.end:,}"),
        ("time", f"{moment(view.at)}, {duration(view.seconds)} after the start"),
        ("event", event.strip()),
        ("phase", view.phase + (f": {view.failure}" if view.failure else "")),
        ("waits for", view.waits_for),
        ("steps", f"{view.steps}{target} committed"),
        ("weights", f"version {view.version} {view.weights_digest[:12]}, published {view.published}"),
        ("open", f"{pressure.open} groups{room}, {pressure.unsealed} in no batch yet, "
                 f"{pressure.prompts_waiting} prompts wait"),
        ("staleness", behind and behind + bound),
        ("training", "\n".join(f"step {s.step}: {len(s.groups)} groups" for s in view.sealed)),
        ("evaluating", "\n".join(f"{e.dataset} of version {e.version}: {e.groups} groups" for e in view.evals)),
        ("groups", f"{counts.groups_requested} requested, {decided}, {counts.groups_trained} trained on"),
        ("samples", f"{counts.samples_completed} completed, {counts.samples_failed} failed, "
                    f"{counts.rewards_failed} ungraded, {counts.suspensions} suspended"),
        ("tokens", f"{counts.response_tokens:,} generated"),
        ("cursors", "\n".join(f"{path} {drawn}" for path, drawn in view.cursors.items())),
    ])  # fmt: skip


def _engines(engines: Sequence[EngineView]) -> str:
    rows = [
        (e.engine, "no weights" if e.version is None else f"v{e.version}", len(e.rollouts),
         sum(rollout.tokens for rollout in e.rollouts))
        for e in engines
    ]  # fmt: skip
    return table(("engine", "runs", "rollouts", "tokens so far"), rows) if rows else ""


def _rollouts(view: MomentView) -> str:
    """Return a table of the rollouts that engines generate and of those that, by the log, none has begun."""
    rows, left = list[tuple[object, ...]](), 0
    for rollouts in (*(engine.rollouts for engine in view.engines), view.queued):
        shown = sorted(rollouts, key=lambda rollout: -rollout.seconds)[:ROLLOUTS]
        left += len(rollouts) - len(shown)
        rows += [(r.sample, _doing(r), r.tokens, _weights(r), r.attempt, duration(max(0.0, r.seconds))) for r in shown]
    head = ("under way", "where", "tokens", "weights", "attempt", "since the request")
    return table(head, rows) + _more(left, "younger rollouts") if rows else ""


def _doing(rollout: OpenRollout) -> str:
    engine = rollout.engine
    if engine is None:
        return "in the queue"
    if not rollout.begun:
        return f"waits, later on {engine}"
    return f"{engine} (known later)" if rollout.said_later else engine


def _weights(rollout: OpenRollout) -> str:
    if rollout.oldest is None or rollout.newest is None:
        return f"none yet, v{rollout.min_version} or newer"
    return versions_range(rollout.oldest, rollout.newest)


def _groups(groups: Sequence[OpenGroup]) -> str:
    rows, left = list[tuple[object, ...]](), 0
    for phase in dict.fromkeys(group.phase for group in groups):
        members = [group for group in groups if group.phase is phase]
        left += max(0, len(members) - ROLLOUTS)
        rows += [
            (g.group, phase, _samples(g.samples), g.tokens, " ".join(f"{reward:g}" for reward in g.rewards),
             None if g.oldest is None else f"v{g.oldest}", g.behind,
             None if g.seconds is None else duration(max(0.0, g.seconds)))
            for g in members[:ROLLOUTS]
        ]  # fmt: skip
    head = ("open group", "phase", "samples", "tokens", "rewards", "oldest", "behind", "age")
    return table(head, rows) + _more(left, "open groups") if rows else ""


def _samples(samples: Mapping[SamplePhase, int]) -> str:
    return ", ".join(f"{n} {phase}" for phase, n in samples.items())


def decisions_text(decisions: Sequence[RunDecision]) -> str:
    """Return decisions as a table, the oldest first."""
    rows = [
        (d.position, clock(d.at), d.type, d.about,
         " ".join(filter(None, (shorten(d.reason, REASON_WIDTH), figures_text(d.figures)))))
        for d in decisions
    ]  # fmt: skip
    return table(("position", "time", "decided", "about", "reason and figures"), rows) if rows else ""


def _more(left: int, what: str = "", indent: str = "") -> str:
    return f"\n{indent}and {left} more{what and ' ' + what} (--json has all)" if left > 0 else ""


def difference_text(view: MomentDiff) -> str:
    """Return the difference of two moments as text for a terminal."""
    counts = view.counts | {f"rejected for {cause}": added for cause, added in view.rejections.items()}
    changed: dict[str, Change[Any]] = {**view.changed, **view.backpressure, **view.cursors}
    head = fields([
        ("run", view.run),
        ("from", _position_text(view.start)),
        ("to", _position_text(view.stop)),
        ("between", f"{view.events:,} events, {duration(view.seconds)}"),
    ])  # fmt: skip
    return paragraphs(
        head,
        _section("changed", changed, _change_text),
        _section("engines", view.engines, _change_text),
        _section("counts", counts, "{:+,}".format),
        _section("groups opened", view.groups.opened, str),
        _section("groups closed", view.groups.closed, str),
        _section("groups that moved", view.groups.moved, lambda change: " -> ".join(map(_progress_text, change))),
        _decisions(view),
    )


def _position_text(point: PointInTime) -> str:
    return f"position {point.position:,} at {clock(point.at)}"


def _section(title: str, values: Mapping[str, T], text_of: Callable[[T], str]) -> str:
    shown = [(name, text_of(value)) for name, value in list(values.items())[:CHANGES]]
    return f"{title}\n{fields(shown, '  ')}{_more(len(values) - CHANGES, indent='  ')}" if values else ""


def _change_text(change: Change[Any]) -> str:
    return " -> ".join("nothing" if value in (None, "") else shorten(str(value), VALUE_WIDTH) for value in change)


def _progress_text(group: GroupProgress) -> str:
    return f"{group.phase} ({_samples(group.samples) or 'no samples'}, {group.tokens} tokens)"


def _decisions(view: MomentDiff) -> str:
    shown, left = decisions_text(view.decisions[-LAST_DECISIONS:]), len(view.decisions) - LAST_DECISIONS
    if shown and left > 0:
        shown += f"\n{left} more before these (--json has them)"
    if shown and view.verdicts_left_out:
        shown += f"\n{view.verdicts_left_out} older verdicts are not kept here"
    return shown
