"""A measured run of the demo, which several benchmarks share.

python -m benchmarks.demo_run MODEL FOLDER STEPS STALENESS     the run itself, in its own process
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from benchmarks.critical_path import StepTime, step_times
from benchmarks.processes import Watch
from benchmarks.trl_baseline import prepared
from schemas.doc import doc
from schemas.errors import DeadlineExceeded, TrainerError
from slime_events.model.verify import verify
from storage.log import Recorded
from storage.open_log import open_run_log

STEPS = 25
RUN = "bench"
DEADLINE_S = 900.0


@dataclass(frozen=True, slots=True)
class DemoRun:
    """Results of a run."""

    summary: dict[str, Any]
    steps: list[StepTime]
    cpu: Annotated[dict[str, float], doc("CPU seconds per step, by role")]
    memory: Annotated[int, doc("Peak of the PSS of all its processes, in bytes")]
    replay: Annotated[float, doc("Events per second of a fold from position 0 of the JetStream log")]
    archive: Annotated[Path, doc("Copy of the run's archive, which outlives the run's folder")]

    @property
    def seconds_per_step(self) -> float:
        """Median seconds of a step."""
        return statistics.median(step.wall for step in self.steps)


@functools.cache
def demo_run(staleness: int = 0, steps: int = STEPS) -> DemoRun:
    """Run the demo without evaluations between the first and the last step."""
    return _run("demo", steps, staleness)


@functools.cache
def smollm2_run(steps: int) -> DemoRun:
    """Run the demo with SmolLM2-135M."""
    return _run("smollm2-135m", steps, 0)


def _run(model: str, steps: int, staleness: int) -> DemoRun:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with demo_process(model, folder, steps, staleness) as process, Watch(process.pid) as watch:
            code = process.wait(DEADLINE_S)
        if code != 0:
            output = (folder / "output").read_text(errors="replace")[-1500:]
            raise TrainerError(f"the demo run of the benchmark ended with exit code {code}: {output}")
        run = folder / "runs" / RUN
        events, replay = asyncio.run(read_events(run))
        times = step_times(events)
        commits = [recorded.envelope.at for recorded in events if recorded.envelope.type == "step.committed"]
        cpu = watch.cpu_between(commits[0], commits[-1])
        return DemoRun(
            summary=json.loads((run / "summary.json").read_text()),
            steps=times,
            cpu={role: seconds / len(times) for role, seconds in sorted(cpu.items(), key=lambda item: -item[1])},
            memory=watch.memory,
            replay=replay,
            archive=_keep(run / "archive" / RUN, f"{model}-{staleness}-{steps}"),
        )


@functools.cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _keep(archive: Path, name: str) -> Path:
    return shutil.copytree(archive, Path(_kept().name) / name / archive.name)


@contextmanager
def demo_process(model: str, folder: Path, steps: int, staleness: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "benchmarks.demo_run", model, str(folder), str(steps), str(staleness)]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL
        )
        try:
            yield process
        except subprocess.TimeoutExpired:
            raise DeadlineExceeded(f"the demo run of the benchmark took more than {DEADLINE_S:.0f} s") from None
        finally:
            process.terminate()
            process.wait()


async def read_events(run: Path) -> tuple[list[Recorded], float]:
    """Return all events, and the events per second of a verified fold."""
    async with open_run_log(run) as log:
        events = [recorded async for recorded in log.read()]
        begun = time.perf_counter()
        verified = await verify(log)
        return events, verified.position / (time.perf_counter() - begun)


def main() -> None:
    """Run the demo in this process."""
    from slime_events.app.launch.run import Launch
    from slime_events.app.launch.view import PlainView
    from slime_events.core.config.derivations import derive

    model, folder, steps, staleness = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    demo = prepared(model, folder, None)
    settings, _ = derive(
        msgspec.structs.replace(
            demo,
            run=msgspec.structs.replace(demo.run, run=RUN, runs_dir=str(folder / "runs")),
            rollout=msgspec.structs.replace(demo.rollout, num_rollout=steps, max_staleness=staleness),
            evaluation=msgspec.structs.replace(demo.evaluation, eval_interval=steps),
        )
    )
    Launch(settings, PlainView()).run_to_end()


if __name__ == "__main__":
    main()
