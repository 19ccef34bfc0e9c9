"""`show RUN`: the whole run on one screen."""

from collections.abc import Sequence

from msgspec import UNSET

from slime_events.analysis.views.run import EXAMPLES, Agents, Calls, RunView, SessionAge
from slime_events.app.cli.commands.show_files import files_text
from slime_events.app.cli.render.evals import evals_text
from slime_events.app.cli.render.text import (
    block,
    duration,
    fields,
    moment,
    paragraphs,
    placement_text,
    restored_text,
    shorten,
    table,
)
from slime_events.app.launch.sparkline import sparkline
from slime_events.core.run.run_folder import RunFolder
from slime_events.loop.prompts.refusals import ReasonCounts
from slime_events.model.foreign import ForeignRecords
from slime_events.model.run_status import MEANINGS, RunStatus
from slime_events.model.session_figures import EndedSessions

LAST_STEPS = 10
LAST_RESTORED = 3
REASON = 160


def run_text(view: RunView, folder: RunFolder | None = None) -> str:
    """Return a run as text for a terminal."""
    evals = evals_text(view.evals, versions=True)
    files = files_text(folder, view.disk) if folder and view.disk is not UNSET else ""
    return paragraphs(_head(view), _steps(view), evals, _refused(view), _engines(view), _foreign(view.foreign), files)


def _head(view: RunView) -> str:
    rewards, counts, idle = view.rewards, view.counts, view.trainer_idle
    status, first, resumed = RunStatus(view.phase), 0, view.lives - 1
    why = f" ({view.ended.reason})" if status is RunStatus.FAILED and view.ended else ""
    ran, again = ("ran for ", f", resumed {resumed} time{'s' if resumed > 1 else ''}") if resumed > 0 else ("", "")
    branched = None
    if parent := view.branched:
        first = parent.version
        learns = ", trained on its rollouts" if parent.follows else ""
        branched = f"from version {first} of {parent.run} ({parent.where}){learns}"
    target = f" of {view.steps_wanted}" if view.steps_wanted else ""
    own = f", {len(rewards)} of its own" if first else ""
    most, bound = view.staleness.most, view.staleness.bound
    bounded = "" if bound is None else f", limit {bound}"
    decided = counts.groups_accepted + counts.groups_rejected
    suspended = f", {counts.suspensions} suspended at step boundaries" if counts.suspensions else ""
    return fields([
        ("run", view.run),
        ("phase", f"{status}{why}: {MEANINGS[status].format(run=view.run)}"),
        ("started", f"{moment(view.started_at)}, {ran}{duration(view.seconds)}{again}, "
                    f"{view.events:,} events"),
        ("branched", branched),
        ("placed", placement_text(view.placement) if view.placement else None),
        ("steps", f"{first + len(rewards)}{target}{own}, weight version {view.version} "
                  f"{view.weights_digest[:12]}"),
        ("trainer", None if idle is None else f"idle {idle:.1%} of the time from its first commit to its last"),
        *(("restored", f"at v{event.version}: {restored_text(event)}")
          for event in view.restored[-LAST_RESTORED:]),
        ("staleness", None if most is None else f"up to {most} versions behind{bounded}"),
        *(_client_fields(view, view.calls) if view.calls else [
            ("reward", f"{sparkline(rewards)}  {rewards[0]:.3f} -> {rewards[-1]:.3f}" if rewards else None),
            ("prompts", f"{counts.prompts_submitted} submitted, {counts.prompts_rejected} refused"),
            ("groups", f"{counts.groups_accepted} of {decided} accepted, {counts.groups_trained} trained on, "
                       f"{view.open_groups} open"),
            ("samples", f"{counts.samples_completed} completed for training; evaluations included, "
                        f"{counts.samples_failed} failed, {counts.rewards_failed} ungraded, "
                        f"{view.in_flight} in flight" + suspended),
        ]),
        ("tokens", f"{counts.response_tokens:,} generated"),
        ("agents", "\n".join(_agents_text(view.agents)) or None),
    ])  # fmt: skip


def _client_fields(view: RunView, calls: Calls) -> list[tuple[str, str | None]]:
    """Return the fields of a run that a client drives. Only the client knows its rewards."""
    models = calls.models
    losses = [line.metrics["loss"] for line in view.steps if "loss" in line.metrics]
    named = models[0] if len(models) == 1 else f"{len(models)} models, the last of them {models[-1]}"
    return [
        ("client", f"{calls.given:,} calls, {calls.done:,} carried out, of {named}"),
        ("loss", f"{sparkline(losses)}  {losses[0]:.3f} -> {losses[-1]:.3f}" if losses else None),
    ]


def _agents_text(agents: Agents) -> list[str]:
    """Return a line about the open sessions, then lines about the others."""
    opened = _open_text(agents.sessions)
    return [*([opened] if opened else []), *_ended_text(agents.ended)]


def _ended_text(ended: EndedSessions) -> list[str]:
    """Return `412 sessions sealed by reward 400, exit 12`, `12 of them failed`, and the newest failures."""
    sealed = sorted(ended.sealed.items(), key=lambda item: -item[1])
    count, lines = sum(ended.sealed.values()), list[str]()
    if count:
        how = ", ".join(f"{reason} {number:,}" for reason, number in sealed)
        lines.append(f"{count:,} session{'' if count == 1 else 's'} sealed by {how}")
    if ended.failed:
        lines.append(f"{ended.failed:,} of them failed, the last")
        lines += [f"  {failure.session}: {shorten(failure.reason, REASON)}" for failure in ended.failures]
    return lines


def _open_text(sessions: Sequence[SessionAge]) -> str | None:
    """Return `3 sessions open, the oldest for 12.1 s; under way: turn 2 of train-0-000007-s3.0 for 4.0 s`."""
    if not sessions:
        return None
    turns = [(turn.age_s, turn.turn, session.session) for session in sessions for turn in session.turns]
    shown = [f"turn {turn} of {name} for {duration(age)}" for age, turn, name in sorted(turns, reverse=True)]
    more = [f"and {len(shown) - EXAMPLES} more"] if len(shown) > EXAMPLES else []
    many = "" if len(sessions) == 1 else "s"
    text = f"{len(sessions)} session{many} open, the oldest for {duration(sessions[0].age_s)}"
    return text + (f"; under way: {', '.join([*shown[:EXAMPLES], *more])}" if shown else "; no turn is under way")


def _steps(view: RunView) -> str:
    if view.calls:
        names = ("loss", "grad_norm", "lr", "skipped")
        rows = [
            (line.step, line.version, *map(line.metrics.get, names), f"{line.seconds:.2f}",
             f"{line.idle:.0%}")
            for line in view.steps[-LAST_STEPS:]
        ]  # fmt: skip
        return table(("step", "version", "loss", "grad norm", "lr", "skipped", "seconds", "idle"), rows) if rows else ""
    rows = [
        (line.step, line.version, f"{line.reward:.3f}", f"{line.accepted_share:.0%}",
         f"{line.mean_length:.1f}", f"{line.tokens_per_s:.0f}", line.staleness, f"{line.seconds:.2f}",
         f"{line.idle:.0%}", line.metrics.get("loss"))
        for line in view.steps[-LAST_STEPS:]
    ]  # fmt: skip
    head = ("step", "version", "reward", "accepted", "length", "tok/s", "staleness", "seconds", "idle", "loss")
    return table(head, rows) if rows else ""


def _refused(view: RunView) -> str:
    rejected = [(r.groups, r.cause, r.reason, " ".join(r.examples)) for r in view.rejections]
    bad = [f"{b.source.path}:{b.source.line} {b.reason}" for b in view.bad_prompts]
    shown = bad
    if len(bad) > EXAMPLES:
        every = f"and {len(bad) - EXAMPLES} more: slime-events tail {view.run} --type prompt.rejected --no-follow"
        reasons = ReasonCounts(b.reason.partition(": ")[2] for b in view.bad_prompts)
        shown = [*bad[:EXAMPLES], every, f"in all {reasons}"]
    return paragraphs(
        table(("rejected", "cause", "reason", "for example"), rejected) if rejected else "",
        "prompts refused\n" + block("\n".join(shown), "  ") if bad else "",
    )


def _engines(view: RunView) -> str:
    rows = [
        (w.worker, w.role, w.pid, view.engines.get(w.worker),
         " ".join(f"{part} {seconds:.1f} s" for part, seconds in w.seconds.items()))
        for w in view.workers
    ]  # fmt: skip
    lost = [f"lost {w.worker}: {w.reason}" for w in view.lost]
    return "\n".join([table(("worker", "role", "pid", "version", "start"), rows), *lost]) if rows else ""


def _foreign(foreign: ForeignRecords) -> str:
    """Return the number of records on the run's stream that are not events, and the newest of them by name."""
    last, count = [str(record) for record in foreign.last], foreign.count
    more = [f"and {count - len(last):,} before them (audit names all)"] if count > len(last) else []
    records = "1 foreign record" if count == 1 else f"{count:,} foreign records"
    named = block("\n".join([*last, *more]), "  ")
    return f"{records}, which are not events of the run and have no effect\n{named}" if count else ""
