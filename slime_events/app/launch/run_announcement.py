"""The first word of a life: run.started or run.resumed, said by one launcher alone.

The file lock on a run's folder keeps two launchers apart on one machine. On two machines with one NATS the log does:
of two that say the same at the same time it keeps one event, and whose it is decides.
"""

from __future__ import annotations

import msgspec

from schemas.errors import Conflict, RunHasEnded, RunIsOn
from schemas.runs import Branched, RunFailed, RunFinished, RunResumed, RunStarted
from schemas.subjects import about
from slime_events.app.launch.environment import code_version, environment
from slime_events.app.launch.run_record import Standing, changes
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation, queue_of
from slime_events.core.run.run_folder import RunFolder
from storage.log import Fence


async def announce_start(
    worker: Participant, settings: TrainSettings, folder: RunFolder, branched: Branched | None
) -> Incarnation:
    """Begin a new run. branched: where it goes on from, if not from its base checkpoint. Raises RunIsOn."""
    log = worker.log
    if held := await log.position():
        raise RunIsOn(f"NATS holds a log of run {log.run} already, with {held} events: choose another name with --run")
    started = RunStarted(
        settings=msgspec.to_builtins(settings),
        code_version=code_version(),
        environment=environment(),
        branched=branched,
    )
    _write(settings, folder)  # before the log says so: a run that was started must be found
    (since,) = await worker.append([started])
    await _check_first(worker)
    return Incarnation(since=since)


async def announce_resume(
    worker: Participant, standing: Standing, settings: TrainSettings, folder: RunFolder
) -> Incarnation:
    """Go on from `standing` with these settings. Raises RunIsOn where another was first, RunHasEnded."""
    log, number = worker.log, standing.incarnation
    resumed = RunResumed(
        incarnation=number,
        code_version=code_version(),
        environment=environment(),
        settings=changes(standing.settings, settings),
    )
    try:
        since = await worker.append_fenced(resumed, Fence(_subject(worker), standing.last.position))
    except Conflict as error:
        last = await log.last(_subject(worker))
        if last is not None and isinstance(last.envelope.event, RunFinished | RunFailed):
            raise RunHasEnded(f"run {log.run} came to its end just now, without its launcher") from error
        raise RunIsOn(
            f"run {log.run} was resumed by another launcher just now: `slime-events tail {log.run}` follows it"
        ) from error
    await _check_first(worker)
    _write(settings, folder)
    done = [await log.done_up_to(queue_of(before)) for before in range(number)]
    return Incarnation(number=number, since=since, requests_from=max(done) + 1)


def _subject(worker: Participant) -> str:
    return about(worker.log.run, "run", "run")


def _write(settings: TrainSettings, folder: RunFolder) -> None:
    folder.settings.write_text(to_toml(settings))
    folder.summary.unlink(missing_ok=True)  # of the life before: this one has not ended yet


async def _check_first(worker: Participant) -> None:
    last = await worker.log.last(_subject(worker))
    if last is None or last.envelope.producer != worker.id:
        run = worker.log.run
        raise RunIsOn(f"run {run} was launched by another launcher just now: `slime-events tail {run}` follows it")
