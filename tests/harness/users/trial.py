"""`try_it`: one file of a user's in a real short run, and what is asked of the run afterwards."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.log import Recorded
from tests.harness.users.script import slime_events, words
from tests.run.tiny import events_of

AFTERWARDS = ("audit", "replay", "retrain")


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that is over. calls: what the user's functions noted, in order."""

    events: list[Recorded]
    calls: list[dict[str, Any]]

    def of(self, kind: type) -> list[Any]:
        """The events of one type."""
        return [record.envelope.event for record in self.events if isinstance(record.envelope.event, kind)]

    def called(self, name: str) -> list[dict[str, Any]]:
        """Return the notes of the calls of one function."""
        return [call for call in self.calls if call["call"] == name]


@dataclass(frozen=True, slots=True)
class Case:
    """A launch script with a user's own functions.

    flags: added to the script's own. calls: functions that must be called. effect: asserts their effect on the log.
    archive: draws from the archive of an earlier run.
    """

    name: str
    flags: str
    calls: tuple[str, ...]
    effect: Callable[[Ran], None]
    archive: bool = False


@dataclass(slots=True)
class Outcome:
    """The outcome of a case. seconds: duration of the run. wrong: what is wrong, by the part where it is."""

    seconds: float
    calls: int = 0
    wrong: dict[str, str] = field(default_factory=dict)


def run_name(case: Case) -> str:
    """Return the name of the case's run."""
    return case.name.replace(" ", "-")


def try_it(case: Case, place: Path, archive: str | None = None) -> Outcome:
    """Run it in the folder `user` of `place`. archive: of an earlier run."""
    user, run, noted = place / "user", run_name(case), place / f"{run_name(case)}.calls"
    flags = case.flags.split() + (["--archive-prompts", archive] if case.archive and archive else [])
    begun = time.monotonic()
    done = slime_events(*words(place, run), *flags, cwd=user, CALLS=str(noted))
    outcome = Outcome(time.monotonic() - begun)
    if done.returncode:
        outcome.wrong["run"] = f"exit code {done.returncode}: {done.stderr.strip()[-2000:]}"
        return outcome
    lines = noted.read_text().splitlines() if noted.exists() else []
    ran = Ran(events_of(place / run), [json.loads(line) for line in lines])
    outcome.calls = sum(len(ran.called(name)) for name in case.calls)
    if missed := [name for name in case.calls if not ran.called(name)]:
        outcome.wrong["calls"] = f"never called: {', '.join(missed)}"
    try:
        case.effect(ran)
    except Exception:  # an assertion, or an event that is not there
        outcome.wrong["effect"] = traceback.format_exc(limit=-1).strip()
    for command in AFTERWARDS:
        answer = slime_events(command, run, "--runs-dir", str(place), cwd=user)
        if answer.returncode or "Traceback" in answer.stderr:
            outcome.wrong[command] = f"exit code {answer.returncode}: {(answer.stdout + answer.stderr).strip()[-2000:]}"
    return outcome
