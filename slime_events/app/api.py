"""The public Python API: start, resume and stop runs, follow their events, query them (docs/python-api.md).

Each run has its own launcher process, like `slime-events train`. It continues if the process that started it ends.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError, DeadlineExceeded, RunNotFound, TrainerError
from slime_events.algorithms.train_arguments import parse_train
from slime_events.analysis.query.open_tables import OpenTables
from slime_events.app.follow_events import EventFilter, check_types, event_batches
from slime_events.app.launch.run_lock import holder_of
from slime_events.app.launch.run_status import is_launched, read_status
from slime_events.app.python_settings import check_settings, settings_toml
from slime_events.core.config.paths import require_paths
from slime_events.core.config.secrets import kept_words
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.local_models import LocalModels
from slime_events.core.run.own_python import own_command, own_path
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder, find_run
from slime_events.core.run.run_reader import is_archive
from slime_events.core.sessions.agent_requests import request_body
from slime_events.model.run_status import RunStatus
from storage.log import Recorded
from storage.nats.accounts import Access
from storage.open_log import live_address

LOOK_S = 0.2
STOP_S = 180.0
CONFIG_EXIT = 2


def parse_settings(*words: str) -> TrainSettings:
    """Parse the arguments of a `slime-events train` command line, including `--config FILE`. Raises ConfigError."""
    return parse_train(words).settings


def demo_settings(folder: str | Path, *words: str) -> TrainSettings:
    """Write the demo's prompts into `folder` and return its settings. words: flags of `train` that change them."""
    from slime_events.app.cli.commands.demo import with_flags
    from slime_events.app.demo.settings import prepare_demo

    return with_flags(prepare_demo(Path(folder).absolute()), words).settings


def start_run(settings: TrainSettings) -> RunProcess:
    """Start a new run. Raises ConfigError, DataError or PlugPointError if the run cannot start with these settings."""
    from slime_events.app.launch.preflight import check_start

    settings = check_settings(settings)
    require_paths(local := LocalModels.of(settings).settings)
    check_start(local)
    folder = RunFolder(settings.run.runs_dir, settings.run.run)
    folder.check_new()
    file, name = tempfile.mkstemp(suffix=".toml", prefix="slime-events-")
    with open(file, "w", encoding="utf-8") as config:
        config.write(settings_toml(settings))
    return RunProcess(("train", "--config", name), folder, config=Path(name))


def resume_run(run: str | Path, *words: str, runs_dir: str | Path = RUNS_DIR) -> RunProcess:
    """Continue a run that was interrupted, has failed or was killed. words: flags of `slime-events resume`.

    Raises RunNotFound.
    """
    folder = find_run(str(run), runs_dir)
    return RunProcess(("resume", str(folder.path), *words), folder)


def branch_run(run: str | Path, version: int, name: str, *words: str, runs_dir: str | Path | None = None) -> RunProcess:
    """Start a new run `name` from a weight version of another run. words: flags of `slime-events branch`.

    run: name, folder or archive URL of the parent. runs_dir: folder of both runs; by default the parent's. Raises
    RunNotFound.
    """
    parent = str(run)
    if is_archive(parent):
        place = Path(runs_dir or RUNS_DIR)
    else:
        folder = find_run(parent, runs_dir or RUNS_DIR)
        parent, place = str(folder.path), Path(runs_dir or folder.path.parent)
    words = ("--from", str(version), "--run", name, "--runs-dir", str(place), *words)
    return RunProcess(("branch", parent, *words), RunFolder(place, name))


def stop_run(run: str | Path, *, runs_dir: str | Path = RUNS_DIR) -> None:
    """Ask the launcher of a run on this machine to stop in order. `resume_run` can continue the run.

    Raises RunNotFound if there is no such run or it has no launcher here.
    """
    folder = find_run(str(run), runs_dir)
    holder = holder_of(folder)
    if holder is None:
        raise RunNotFound(f"run {folder.run} has no launcher on this machine: there is nothing to stop")
    os.kill(holder.pid, signal.SIGINT)


def open_run(
    run: str | Path, *, runs_dir: str | Path = RUNS_DIR, with_parent: bool = False, cache: Path | None = None
) -> OpenRun:
    """Open a run by name, folder or archive URL, running or ended: `with open_run("demo") as run: run.sql(...)`.

    with_parent: for a branch, SQL also reads the runs that it branched from. cache: folder of Parquet tables of
    archives; by default in this user's cache. Raises RunNotFound, StorageError, ConfigError. Without `with`, call
    `close` at the end.
    """
    return OpenRun(str(run), runs_dir=runs_dir, with_parent=with_parent, cache=cache)


class OpenRun(OpenTables):
    """An opened run. `sql(query)` returns an `Answer`; `ask(work)` awaits a coroutine, such as `audit(...)`."""

    @property
    def name(self) -> str:
        """Name that the run was started with."""
        return self.opened.run

    @property
    def settings(self) -> TrainSettings:
        """The run's current settings."""
        return self.opened.settings

    def status(self) -> RunStatus:
        """Return the run's status now. Raises StorageError."""
        return self.ask(read_status(self.opened))

    def events(
        self, *types: str, group: str | None = None, sample: str | None = None, start: int = 1, follow: bool = True
    ) -> Iterator[Recorded]:
        """Yield events in the order of the log, and follow a running run to its end, unless `follow` is False.

        types: event types (`step.committed`) or nouns (`step`); none for all. group, sample: only events about it.
        start: first position. Raises InvalidValue for an unknown type, and the errors of the log.
        """
        query = EventFilter(check_types(types), group, sample, start)
        folder, log = self.opened.folder, self.opened.log
        is_running = None
        if follow and folder is not None and live_address(folder.path, Access.VIEWER) is not None:
            is_running = functools.partial(is_launched, folder, log)
        batches = event_batches(log, query, follow=is_running)

        async def batch() -> list[Recorded] | None:
            return await anext(batches, None)

        try:
            while (events := self.ask(batch())) is not None:
                yield from events
        finally:
            self.ask(batches.aclose())

    def agent_request(self, sample: str, turn: int) -> bytes:
        """Return the exact request body of an agent's turn. sample: the sample of its session.

        Raises RunNotFound if there is no such turn, BlobMissing.
        """
        return self.ask(request_body(self.opened.log, sample, turn, self.opened.fetch))


class RunProcess:
    """A run that this process started. As a context manager it stops the run at the end of the block."""

    def __init__(self, words: Sequence[str], folder: RunFolder, *, config: Path | None = None) -> None:
        self._folder, self._config = folder, config
        self._written_before = _written(folder)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 open as long as this object lives
        words, secrets = kept_words(words)
        self._process = subprocess.Popen(
            own_command("slime_events.app.cli.main", *words),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | own_path() | secrets,
        )
        if config is not None:  # a caller need not call `wait`
            weakref.finalize(self, _remove_read, config, folder, self._process)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self._folder.run

    @property
    def folder(self) -> Path:
        """Folder with all files of the run."""
        return self._folder.path

    @property
    def is_running(self) -> bool:
        """Whether the run's launcher is running."""
        return self._process.poll() is None

    def output(self) -> str:
        """Return the output of the launcher so far."""
        end = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), end, 0).decode(errors="replace")

    def events(self, *types: str, **narrow: Any) -> Iterator[Recorded]:
        """Wait for the run's log, then yield from `OpenRun.events` until the run ends. Raises as `wait`.

        narrow: keyword arguments of `OpenRun.events`.
        """
        while self.is_running and _written(self._folder) == self._written_before:
            time.sleep(LOOK_S)  # the launcher writes the run's settings when it starts or resumes the run
        if not self._folder.settings.is_file():
            self.wait()
        with self._open() as run:
            yield from run.events(*types, **narrow)

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until the run ends or is stopped, and return its summary.

        Raises ConfigError if it cannot start with these settings, TrainerError if it failed, DeadlineExceeded.
        """
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DeadlineExceeded(f"run {self.name} has not ended within {timeout_s} s") from None
        if self._config is not None:
            _remove_read(self._config, self._folder, self._process)
        if code in (0, 128 + signal.SIGINT) and self._folder.summary.is_file():
            summary: dict[str, Any] = json.loads(self._folder.summary.read_text(encoding="utf-8"))
            return summary
        lines = [line for line in self.output().splitlines() if line.startswith("error: ")]
        reason = "\n".join(line.removeprefix("error: ") for line in lines) or f"its launcher ended with code {code}"
        raise (ConfigError if code == CONFIG_EXIT else TrainerError)(reason)

    def stop(self, timeout_s: float = STOP_S) -> dict[str, Any]:
        """Ask the launcher to stop in order, wait for it, and return the summary. Raises as `wait`."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)
        return self.wait(timeout_s)

    def __enter__(self) -> RunProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.stop()

    def _open(self) -> OpenRun:
        """Open the run. Its settings are written just before the first event of its log."""
        while True:
            is_running = self.is_running
            try:
                return open_run(self.folder)
            except RunNotFound:
                if not is_running:
                    raise
            time.sleep(LOOK_S)


def _remove_read(config: Path, folder: RunFolder, launcher: subprocess.Popen[bytes]) -> None:
    """Remove the temporary settings file if the launcher has read it or has ended."""
    if folder.settings.is_file() or launcher.poll() is not None:
        config.unlink(missing_ok=True)


def _written(folder: RunFolder) -> int:
    """Return the time when the settings in a run's folder were written, in nanoseconds; 0 if there are none."""
    return folder.settings.stat().st_mtime_ns if folder.settings.is_file() else 0
