"""`trial`: one agent's run, struck while it asks, and judged."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from schemas.ids import requested_sample, session_name
from schemas.steps import StepCommitted
from slime_events.app.demo.settings import BASE
from tests.harness.agent_kills.settings import NOTES, AgentRun
from tests.harness.agent_kills.told import read_notes
from tests.harness.agent_kills.verdict import Facts, not_as_made, not_as_told, open_turns, trained_amiss
from tests.harness.chaos import measures
from tests.harness.chaos.aftermath import AUDIT_DEADLINE_S, Aftermath, read_back
from tests.harness.chaos.run import Survived, log_on, survive
from tests.harness.chaos.schedule import Kind, schedule
from tests.harness.chaos.settings import RUN

KINDS = (Kind.GATEWAY, Kind.ENGINE, Kind.CONDUCTOR)
SHOWN = 5


def trial(settings: AgentRun, kills: int, seed: int, *, keep: bool = False) -> dict[str, Any]:
    """Run the trial; return its figures. `broken` lists the promises that were not kept. The folder stays if there are
    some, or with `keep`.
    """
    folder = Path(tempfile.mkdtemp(prefix="slime-agents-"))
    with log_on(folder, clustered=False) as servers:
        strikes = schedule(kills, seed, settings.steps, KINDS, in_turn=True)
        survived = survive(settings, strikes, folder, servers)
        try:
            facts = _figures(survived, read_back(folder / RUN), settings, folder, kills)
        except Exception as error:
            facts = {"broken": [f"{survived.failure or ''}; it cannot be read: {type(error).__name__}: {error}"]}
    if facts["broken"] or keep:
        return facts | {"folder": str(folder)}
    shutil.rmtree(folder)
    return facts


def _figures(survived: Survived, after: Aftermath, settings: AgentRun, folder: Path, kills: int) -> dict[str, Any]:
    facts = Facts.of(after.events, after.fetch)
    answers, refusals = read_notes(folder / NOTES)
    untold = not_as_told(answers, facts, partial(AutoTokenizer.from_pretrained(BASE).decode, skip_special_tokens=True))
    steps = sum(isinstance(event, StepCommitted) for event in after.events)
    open_at = [open_turns(after.log, struck.at) for struck in survived.struck]
    met = {struck.kind for struck, turns in zip(survived.struck, open_at, strict=True) if turns}
    lost = measures.tokens_lost(after.events, after.fetch)
    recoveries = measures.recoveries(survived.struck, survived.sightings)
    weights = measures.weight_digests(after.events)
    replay, unnamed = _ask(folder, "replay"), _not_in_lineage(folder, facts)
    broken = {
        f"the run broke: {survived.failure}": survived.failure,
        f"it made {steps} of {settings.steps} steps": steps != settings.steps,
        f"{len(survived.struck)} of {kills} kills were made": len(survived.struck) != kills,
        f"open turns at the kills: {open_at}": met < set(KINDS),
        f"told and not recorded: {_some(untold)}": untold,
        f"recorded and not made: {_some(not_as_made(facts))}": not_as_made(facts),
        f"trained twice, or made by none: {_some(trained_amiss(facts))}": trained_amiss(facts),
        f"acked tokens lost: {lost}": lost,
        f"engines made {after.generated} tokens, turns have {facts.tokens}": after.generated < facts.tokens,
        "no step moved the weights": len(set(weights.values())) < 2,
        "no agent received an answer": not answers,
        f"the history checker found: {_some(after.history)}": after.history,
        f"the audit is not clean: {after.audit}": after.audit,
        f"replay is not clean: {replay.stdout[-500:]}": replay.returncode,
        f"lineage does not name {_some(unnamed)}": unnamed,
        f"processes left behind: {survived.left_behind}": survived.left_behind,
    }
    return {
        "killed": [strike.kind.value for strike in survived.struck],
        "open_turns_at_kills": open_at,
        "sessions": len(facts.opened),
        "sessions_failed": sum(bool(seal.exit_code) for seal in facts.sealed.values()),
        "turns": len(facts.turns),
        "answers_told": len(answers),
        "refusals": sorted({f"{status} {body[:200]}" for status, body in refusals}),
        "steps": steps,
        "samples_trained": len(facts.trained),
        "tokens": facts.tokens,
        "tokens_made": after.generated,
        "seconds_to_be_back": [round(recovery.back_s, 1) if recovery.back_s else None for recovery in recoveries],
        "seconds": round(survived.seconds),
        "broken": [sentence for sentence, is_so in broken.items() if is_so],
    }


def _not_in_lineage(folder: Path, facts: Facts) -> list[str]:
    """Return trained samples, and their sessions, that the lineage of the newest version does not name."""
    sessions = {session_name(requested_sample(name), facts.completed[name].attempt) for name in facts.trained}
    table = _ask(folder, "lineage", "--depth", "0", "--format", "json").stdout
    return [name for name in (*facts.trained, *sorted(sessions)) if f'"{name}"' not in table]


def _ask(folder: Path, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "slime_events.app.cli.main", command, str(folder / RUN), *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=AUDIT_DEADLINE_S, check=False)


def _some(items: Any) -> str:
    return ", ".join(map(str, list(items)[:SHOWN]))


def row(facts: dict[str, Any]) -> str:
    """Return one line for a person."""
    if "turns" not in facts:
        return f"{facts['agent']:<16} broken"
    killed = " ".join(
        f"{kind}({turns})" for kind, turns in zip(facts["killed"], facts["open_turns_at_kills"], strict=True)
    )
    counted = f"{facts['sessions']} sessions ({facts['sessions_failed']} failed), {facts['turns']} turns"
    totals = f"{facts['answers_told']} answers, {facts['steps']} steps, {facts['seconds']} s"
    verdict = "broken" if facts["broken"] else "ok"
    return f"{facts['agent']:<16} {verdict:<6} {counted}, {totals}; killed (open turns) {killed}"
