"""Measure commands and resumption on a run of 5,000 weight versions and 10^6 events.

The log is synthetic, in a run's folder. Resumption lasts from its start to the conductor's first decision: without Ray,
with the actor of the conductor in the same process, with a snapshot and without; and once as the real command with all
roles, the median of three turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.figure import Better, Figure
from benchmarks.kept_log import RUN, fill_archive, fill_log
from benchmarks.long_log import CHECKPOINT_EVERY, GROUPS, SAMPLES, TOKENS, trained
from schemas.event import Event
from schemas.rollouts import FailureKind, RolloutFailed, RolloutRequested
from schemas.subjects import of_type
from schemas.weights import WeightsActivated, WeightsPublished
from schemas.workers import WorkerJoined
from serve_apps.engines.engine_weights import EngineWeights
from slime_events.analysis.replay.equality import is_decision
from slime_events.app.demo.settings import prepare_demo
from slime_events.core.config.derivations import derive
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.state.keeper import EVERY, StateKeeper
from slime_events.core.state.snapshot import Snapshots
from slime_events.core.state.state_fold import StateFold
from slime_events.model.progress import Progress, ProgressSnapshot
from storage.cancellation import end_all
from storage.group_commit import GroupCommit
from storage.jetstream.log import JetStreamLog
from storage.nats.accounts import Access
from storage.nats.server import NatsServer
from storage.open_log import open_run_log
from storage.weights.store import WeightStore
from tests.scripted_engine import Script, ScriptedEngine

STEPS = 5_000
DEADLINE_S = 600.0
REPEATS = 3
SQL = "SELECT newest_version // 1000, count(*), avg(reward) FROM samples GROUP BY ALL"


def measure(steps: int = STEPS) -> list[Figure]:
    """Return seconds of commands from process start to end, and of `resume` to its first decision."""
    with tempfile.TemporaryDirectory() as temporary:
        return asyncio.run(_measure(Path(temporary), steps))


async def _measure(temporary: Path, steps: int) -> list[Figure]:
    settings = _settings(temporary, steps)
    folder = RunFolder.create(settings.run.runs_dir, RUN)
    folder.settings.write_text(to_toml(settings))
    plain = msgspec.to_builtins(settings)
    async with await NatsServer.start(folder.nats) as server:
        log = await JetStreamLog.open(server.url, RUN)
        server.stage_in_memory()
        await fill_log(log, steps, plain)
        count = await log.position()
        fill_archive(str(folder.archive), steps, plain, up_to=count - EVERY)
        await log.close()
    await _keep_snapshots(folder, temporary / "snapshots")
    note = f"{count:,} events, {steps:,} versions"
    commands = await asyncio.to_thread(_commands, folder, steps, note)
    activated = await _first_activation(folder, steps)
    note = f"{note}; to the first decision, without Ray and its processes"
    without = await _resume(folder, "resume without a snapshot", 10.0, f"{note}; all but {EVERY} events are archived")
    await _append(folder, trained(steps))  # so that the next decision is due
    shutil.rmtree(folder.path / "snapshots")
    shutil.copytree(temporary / "snapshots", folder.path / "snapshots")
    kept = await _resume(folder, "resume with a snapshot", 5.0, f"{note}; the snapshot is {EVERY} events old")
    await _append(folder, [await _failure(folder)])
    real = await _real_resumes(folder, f"{count:,} events; to the first decision")
    return [without, kept, real, activated, *commands]


async def _real_resumes(folder: RunFolder, note: str) -> Figure:
    """Return the median of REPEATS resumptions of one folder. The first reads Ray and its libraries from the disk."""
    kept = folder.path.with_name(f"{RUN}-kept")
    folder.path.rename(kept)
    seen = []
    for _ in range(REPEATS):
        shutil.rmtree(folder.path, ignore_errors=True)
        shutil.copytree(kept, folder.path)
        os.sync()  # so that the copy is not written while the command runs
        seen.append(await _resume(folder, "resume, the real command", 5.0, note, real=True))
    each = ", ".join(f"{figure.value:.1f}" for figure in seen)
    middle = sorted(seen, key=lambda figure: figure.value)[REPEATS // 2]
    return msgspec.structs.replace(middle, note=f"{middle.note}; the median of {each}, one after the other")


def _settings(temporary: Path, steps: int) -> TrainSettings:
    """Return the demo's settings with the sizes of the generated log."""
    settings = prepare_demo(temporary / "data")
    changes = {
        "run": {"run": RUN, "runs_dir": str(temporary / "runs"), "plain": True},
        "rollout": {
            "num_rollout": steps + 100,
            "rollout_batch_size": GROUPS,
            "n_samples_per_prompt": SAMPLES,
            "rollout_max_response_len": TOKENS,
        },
        "evaluation": {"eval_interval": None, "eval_prompt_data": []},
        "trainer": {"global_batch_size": None, "lr_warmup_iters": 0, "save_interval": CHECKPOINT_EVERY},
    }
    for part, fields in changes.items():
        changed = msgspec.structs.replace(getattr(settings, part), **fields)
        settings = msgspec.structs.replace(settings, **{part: changed})
    return derive(settings)[0]


async def _keep_snapshots(folder: RunFolder, where: Path) -> None:
    """Write snapshots of conductor and launcher at the end of the archive."""
    async with open_run_log(folder.path, RUN) as log:
        conductors, launchers = StateKeeper(Snapshots(where), str(folder.archive)), _of_launcher(where, folder)
        for keeper, fold in ((conductors, StateFold(RUN)), (launchers, Progress(RUN))):
            await keeper.restore(fold, log)  # type: ignore[attr-defined]  # keepers of two kinds
            await keeper.close(fold)  # type: ignore[attr-defined]


def _of_launcher(where: Path, folder: RunFolder) -> StateKeeper[ProgressSnapshot]:
    return StateKeeper(Snapshots(where / "launcher", ProgressSnapshot), str(folder.archive))


@contextlib.asynccontextmanager
async def _writing(folder: RunFolder) -> AsyncIterator[JetStreamLog]:
    async with await NatsServer.start(folder.nats) as server:
        log = await JetStreamLog.open(server.address(Access.ROLES), RUN, create=False)
        try:
            yield log
        finally:
            await log.close()


async def _append(folder: RunFolder, events: Iterable[Event]) -> None:
    async with _writing(folder) as log:
        worker = Participant(log, "bench")
        for event in events:
            await worker.append([event])


async def _failure(folder: RunFolder) -> RolloutFailed:
    """Return the failure of a requested rollout, which the conductor requests again."""
    async with open_run_log(folder.path, RUN) as log:
        last = await log.last(of_type(RUN, "rollout.requested"))
    assert last is not None
    event = last.envelope.event
    assert isinstance(event, RolloutRequested)
    return RolloutFailed(
        sample=event.sample, group=event.group, attempt=event.attempt, kind=FailureKind.ENGINE, message="", engine="e"
    )


async def _resume(folder: RunFolder, name: str, target: float | None, note: str, *, real: bool = False) -> Figure:
    """Resume until the conductor's first decision. real: with the command and all roles."""
    async with open_run_log(folder.path, RUN) as log:
        before = await log.position()
    module = ["slime_events.app.cli.main", "resume"] if real else ["benchmarks.resume_alone"]
    begun, output = time.perf_counter(), folder.path / "output"
    with output.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *module, str(folder.path), stdout=file, stderr=file, start_new_session=True
        )
        deciding = asyncio.create_task(_first_decision(folder, before, begun))
        try:
            await asyncio.wait([deciding, asyncio.create_task(process.wait())], return_when=asyncio.FIRST_COMPLETED)
            if not deciding.done():
                raise AssertionError(f"resume ended before a decision: {output.read_text()[-2000:]}")
            ready, decided = deciding.result()
        finally:
            await end_all(deciding)
            for _ in range(2):
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT if real else signal.SIGKILL)
                await asyncio.sleep(1)
            await process.wait()
            if (server := NatsServer.attach(folder.nats)) is not None:
                await server.stop()
    note += f", {ready:.1f} s of it until the conductor had joined"
    return Figure(name=name, value=decided, unit="s", target=target, better=Better.LOWER, note=note)


async def _first_decision(folder: RunFolder, before: int, begun: float) -> tuple[float, float]:
    """Return seconds until the conductor had joined, and until its first decision was in the log."""
    ready = 0.0
    async with asyncio.timeout(DEADLINE_S):
        while True:
            server = NatsServer.attach(folder.nats)
            if server is not None and not server.record.temporary:
                break
            await asyncio.sleep(0.02)
        log = await JetStreamLog.open(server.address(Access.ROLES), RUN, create=False)
        try:
            async for recorded in log.read(before + 1, follow=True):
                event = recorded.envelope.event
                if isinstance(event, WorkerJoined) and event.role == "conductor":
                    ready = time.perf_counter() - begun
                if is_decision(event):
                    return ready, time.perf_counter() - begun
        finally:
            await log.close()
    raise AssertionError("a log that is followed does not end")


async def _first_activation(folder: RunFolder, steps: int) -> Figure:
    """Return seconds from a scripted engine's first read of the log to its weights.activated."""
    store = WeightStore(str(folder.weights))
    data = np.zeros(1024, np.float32)
    manifest = store.write(steps + 1, [("w", "F32", (1024,), memoryview(data).cast("B"))], parent=None)
    async with _writing(folder) as log:
        worker = Participant(log, "engine")
        newest = WeightsPublished(
            version=steps + 1,
            parent=steps,
            url=store.folder(steps + 1, manifest.digest),
            digest=manifest.digest,
            bytes=manifest.bytes,
        )
        await worker.append([newest])
        engine = ScriptedEngine(Script())
        await engine.start(1.0)
        async with GroupCommit(log) as commit:
            weights = EngineWeights(worker, engine, commit)
            begun = time.perf_counter()
            tasks = [asyncio.create_task(part()) for part in (weights.follow, weights.switch)]
            while True:
                last = await log.last(of_type(RUN, "weights.activated"))
                event = last.envelope.event if last else None
                if isinstance(event, WeightsActivated) and event.engine == worker.id:
                    break
                await asyncio.sleep(0.005)
            seconds = time.perf_counter() - begun
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return Figure(
        name="an engine's first activation",
        value=seconds,
        unit="s",
        target=1.0,
        better=Better.LOWER,
        note=f"of {steps + 1:,} versions; scripted engine",
    )


def _commands(folder: RunFolder, steps: int, note: str) -> list[Figure]:
    commands = {
        "show --step": ["show", "--step", str(steps // 2)],
        "show --sample": ["show", "--sample", f"train-0-{steps * GROUPS // 2:07d}-s3"],
        "show --version": ["show", "--version", str(steps // 2)],
        "lineage": ["lineage", "--version", str(steps // 2)],
        "query, first": ["query", SQL],
        "query, again": ["query", SQL],
        "show": ["show"],
    }
    targets = {"show --sample": 1.0, "lineage": 2.0, "query, again": 5.0}
    return [
        Figure(
            name=f"{what} of a long run",
            value=_took(folder, *words),
            unit="s",
            target=targets.get(what),
            better=Better.LOWER,
            note=f"{note}, with a server started to read it",
        )
        for what, words in commands.items()
    ]


def _took(folder: RunFolder, command: str, *words: str) -> float:
    line = [sys.executable, "-m", "slime_events.app.cli.main", command, str(folder.path), *words]
    begun = time.perf_counter()
    done = subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
    if done.returncode:
        raise AssertionError(f"{' '.join(line)} gave {done.returncode}: {done.stderr or done.stdout}")
    return time.perf_counter() - begun
