"""`Aftermath`: a run that is over, read back: its log, its digests, the findings of the two checkers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from schemas.event import Event
from slime_events.core.tokens.trajectory import Fetch
from storage.blobs import BlobStore
from storage.log import Recorded
from storage.open_log import open_run_log
from storage.payloads import fetch
from tests.harness.chaos.engine_log import tokens_generated
from tests.harness.history.checker import check

AUDIT_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Aftermath:
    """history: findings of tests/harness/history. audit: the output of `slime-events audit` if it exited 1."""

    log: Sequence[Recorded]
    events: Sequence[Event]
    generated: int
    history: tuple[str, ...]
    audit: str
    fetch: Fetch


def read_back(run_folder: Path) -> Aftermath:
    """Read back a run that is over."""
    log = asyncio.run(_read(run_folder))
    findings = check((recorded.position, recorded.subject, recorded.data) for recorded in log)
    return Aftermath(
        log=log,
        events=[recorded.envelope.event for recorded in log],
        generated=tokens_generated(run_folder / "logs"),
        history=tuple(f"{finding.kind} at {finding.position}: {finding.sentence}" for finding in findings),
        audit=_audit(run_folder),
        fetch=partial(fetch, blobs=BlobStore(str(run_folder / "blobs"))),
    )


async def _read(run_folder: Path) -> list[Recorded]:
    async with open_run_log(run_folder) as log:
        return [recorded async for recorded in log.read()]


def _audit(run_folder: Path) -> str:
    """Return the output of the audit; nothing if it is clean."""
    done = subprocess.run(
        [sys.executable, "-m", "slime_events.app.cli.main", "audit", str(run_folder)],
        capture_output=True,
        text=True,
        timeout=AUDIT_DEADLINE_S,
        check=False,
    )
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}".strip()
