"""`show RUN`: the whole run on one screen."""

from __future__ import annotations

from typing import Any

from schemas.groups import GroupRejected
from schemas.runs import RunFailed, RunFinished, RunResumed, RunStarted
from slime_events.analysis.model import History
from slime_events.analysis.model.progress import NANO, Progress
from slime_events.analysis.model.rejections import Reason, reason_of
from slime_events.app.cli.render.json_values import plain
from slime_events.app.cli.render.text import block, cell_text, duration, fields, moment, sparkline, table, versions_text
from slime_events.app.launch.run_status import MEANINGS, RunStatus, status_of
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_settings import settings_in_force
from slime_events.loop.conductor.plan import Plan, make_plan

LAST_STEPS = 10
EXAMPLES = 3


def run_facts(history: History, progress: Progress, launched: bool | None = None) -> dict[str, Any]:
    """What a person asks first: where the run stands, how rewards went, what was refused and why.

    launched: whether a launcher is on; None where that cannot be known.
    """
    plan = _plan(history)
    state, end = progress.state, history.lifetime[-1].event if history.lifetime else None
    return {
        "run": history.run,
        "phase": status_of(end, launched).value,
        "ended": plain(end) if isinstance(end, RunFinished | RunFailed) else None,
        "branched": plain(branched) if (branched := history.branched) else None,
        "started_at": history.first_at,
        "seconds": progress.time.on * NANO,
        "lives": progress.time.lives,
        "events": history.events,
        "steps": [plain(line) for line in progress.steps],
        "steps_wanted": plan.steps if plan else None,
        "staleness": _staleness(progress, plan),
        "trainer_idle": progress.trainer_idle,
        "version": state.version,
        "weights_digest": state.weights_digest,
        "evals": [plain(said.event) for said in history.evals],
        "counts": plain(state.counts),
        "rejections": _rejections(history),
        "bad_prompts": [plain(said.event) for said in history.bad_prompts],
        "engines": dict(state.activated),
        "workers": [plain(said.event) for said in history.workers.values()],
        "lost": [plain(said.event) for said in history.lost],
        "open_groups": state.open_groups,
        "in_flight": progress.in_flight,
    }


def _plan(history: History) -> Plan | None:
    """What the run is conducted by since its last resumption; None where its settings do not say how many steps."""
    life = (said.event for said in history.lifetime)
    settings = settings_in_force(event for event in life if isinstance(event, RunStarted | RunResumed))
    if settings.rollout.num_rollout is None:
        return None
    return make_plan(settings.rollout, settings.evaluation, settings.trainer)


def _staleness(progress: Progress, plan: Plan | None) -> dict[str, int | None]:
    """most: versions that any sample was behind. bound: that it may be; None for a run that follows another."""
    return {
        "most": max((line.staleness for line in progress.steps), default=None),
        "bound": None if plan is None or progress.state.follows else plan.staleness_bound,
    }


def _rejections(history: History) -> list[dict[str, Any]]:
    """Rejected groups by cause and reason, the most frequent first, with a few of their ids."""
    found: dict[Reason, list[str]] = {}
    for group in history.groups.values():
        if group.decision and isinstance(group.decision.event, GroupRejected):
            found.setdefault(reason_of(group.decision.event), []).append(group.group)
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        {"cause": reason.cause.value, "reason": reason.text, "groups": len(ids), "examples": ids[:EXAMPLES]}
        for reason, ids in ranked
    ]


def run_text(facts: dict[str, Any], folder: RunFolder | None = None) -> str:
    """The same, for people."""
    parts = [_head(facts), _steps(facts), _evals(facts), _refused(facts), _engines(facts)]
    if folder is not None:
        parts.append(_files(folder))
    return "\n\n".join(part for part in parts if part)


def _head(facts: dict[str, Any]) -> str:
    steps, counts, ended = facts["steps"], facts["counts"], facts["ended"] or {}
    decided = counts["groups_accepted"] + counts["groups_rejected"]
    status = RunStatus(facts["phase"])
    why = f" ({ended['reason']})" if status is RunStatus.FAILED else ""
    rewards = [line["reward"] for line in steps]
    return fields([
        ("run", facts["run"]),
        ("phase", f"{status}{why}: {MEANINGS[status].format(run=facts['run'])}"),
        ("started", f"{moment(facts['started_at'])}, {_on(facts)}, {facts['events']:,} events"),
        ("branched", _branched(facts["branched"])),
        ("steps", f"{_counted(facts)}, weight version {facts['version']} {facts['weights_digest'][:12]}"),
        ("trainer", _idle(facts["trainer_idle"])),
        ("staleness", _behind(facts["staleness"])),
        ("reward", _reward(rewards)),
        ("prompts", f"{counts['prompts_submitted']} submitted, {counts['prompts_rejected']} refused"),
        ("groups", f"{counts['groups_accepted']} of {decided} accepted, {counts['groups_trained']} trained on, "
                   f"{facts['open_groups']} open"),
        ("samples", f"{counts['samples_completed']} completed for training; evaluations included, "
                    f"{counts['samples_failed']} failed, {counts['rewards_failed']} ungraded, "
                    f"{facts['in_flight']} in flight" + _rests(counts)),
        ("tokens", f"{counts['response_tokens']:,} generated"),
    ])  # fmt: skip


def _on(facts: dict[str, Any]) -> str:
    """How long it was on: from each start or resumption to the last event before the next."""
    resumed = facts["lives"] - 1
    again = f", resumed {resumed} time{'s' if resumed > 1 else ''}" if resumed > 0 else ""
    return f"{'on for ' if again else ''}{duration(facts['seconds'])}{again}"


def _branched(branched: dict[str, Any] | None) -> str | None:
    if branched is None:
        return None
    learns = ", on whose rollouts it is trained," if branched.get("follows") else ","
    return f"from version {branched['version']} of {branched['run']}{learns} which is {branched['where']}"


def _counted(facts: dict[str, Any]) -> str:
    own, first = len(facts["steps"]), facts["branched"]["version"] if facts["branched"] else 0
    wanted = f" of {facts['steps_wanted']}" if facts["steps_wanted"] else ""
    return f"{first + own}{wanted}" + (f", {own} of its own" if first else "")


def _rests(counts: dict[str, Any]) -> str:
    return f", {counts['suspensions']} rests at step boundaries" if counts["suspensions"] else ""


def _idle(share: float | None) -> str | None:
    return None if share is None else f"idle {share:.1%} of the time from its first commit to its last"


def _behind(staleness: dict[str, int | None]) -> str | None:
    if staleness["most"] is None:
        return None
    bound = "" if staleness["bound"] is None else f", at most {staleness['bound']} by its settings"
    return f"up to {staleness['most']} versions behind{bound}"


def _reward(rewards: list[float]) -> str | None:
    if not rewards:
        return None
    return f"{sparkline(rewards)}  {rewards[0]:.3f} -> {rewards[-1]:.3f}"


def _steps(facts: dict[str, Any]) -> str:
    lines = facts["steps"][-LAST_STEPS:]
    if not lines:
        return ""
    head = ("step", "version", "reward", "accepted", "length", "tok/s", "staleness", "seconds", "idle", "loss")
    rows = [
        (
            line["step"],
            line["version"],
            f"{line['reward']:.3f}",
            f"{line['accepted_share']:.0%}",
            f"{line['mean_length']:.1f}",
            f"{line['tokens_per_s']:.0f}",
            line["staleness"],
            f"{line['seconds']:.2f}",
            f"{line['idle']:.0%}",
            cell_text(line["metrics"].get("loss")),
        )
        for line in lines
    ]
    return table(head, rows)


def _evals(facts: dict[str, Any]) -> str:
    if not facts["evals"]:
        return ""
    rows = [
        (e["dataset"], e["version"], f"{e['mean']:.3f}", e["samples"], e["failed"], versions_text(e))
        for e in facts["evals"]
    ]
    return table(("eval", "version", "mean", "samples", "failed", "answers by"), rows)


def _refused(facts: dict[str, Any]) -> str:
    parts = []
    if facts["rejections"]:
        rows = [(r["groups"], r["cause"], r["reason"], " ".join(r["examples"])) for r in facts["rejections"]]
        parts.append(table(("rejected", "cause", "reason", "for example"), rows))
    if facts["bad_prompts"]:
        shown = [f"{b['source']['path']}:{b['source']['line']} {b['reason']}" for b in facts["bad_prompts"][:EXAMPLES]]
        more = len(facts["bad_prompts"]) - len(shown)
        parts.append("prompts refused\n" + block("\n".join([*shown, *([f"and {more} more"] if more else [])]), "  "))
    return "\n\n".join(parts)


def _engines(facts: dict[str, Any]) -> str:
    rows = [(w["worker"], w["role"], w["pid"], facts["engines"].get(w["worker"]), _start(w)) for w in facts["workers"]]
    lost = [f"lost {w['worker']}: {w['reason']}" for w in facts["lost"]]
    return "\n".join([table(("worker", "role", "pid", "version", "start"), rows), *lost]) if rows else ""


def _start(worker: dict[str, Any]) -> str:
    return " ".join(f"{part} {seconds:.1f} s" for part, seconds in worker["seconds"].items())


def _files(folder: RunFolder) -> str:
    named = (
        ("log", folder.nats),
        ("archive", folder.archive),
        ("blobs", folder.blobs),
        ("weights", folder.weights),
        ("checkpoints", folder.checkpoints),
        ("traces", folder.traces),
        ("process logs", folder.logs),
        ("settings", folder.settings),
        ("summary", folder.summary),
    )
    return fields((name, path) for name, path in named if path.exists())
