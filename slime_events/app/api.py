"""The public Python API: start, resume and stop runs, follow their events, ask them (docs/python-api.md).

A run that is started here has a launcher process of its own, as `slime-events train` is one: it goes on where the
process that started it ends.
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
from slime_events.app.follow_events import Wanted, check_types, event_batches
from slime_events.app.launch.run_lock import holder_of
from slime_events.app.launch.run_status import RunStatus, is_launched, read_status
from slime_events.app.python_settings import check_settings, settings_toml
from slime_events.core.agent_requests import request_body
from slime_events.core.config.paths import require_paths
from slime_events.core.config.secrets import kept_words
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.own_python import own_command, own_path
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder, find_run
from slime_events.core.run.run_reader import is_archive
from storage.log import Recorded
from storage.nats.accounts import Access
from storage.open_log import live_address

LOOK_S = 0.2
STOP_S = 180.0
CONFIG_EXIT = 2


def parse_settings(*words: str) -> TrainSettings:
    """Settings from the words of a `slime-events train` command line, `--config FILE` included. Raises ConfigError."""
    return parse_train(words).settings


def demo_settings(folder: str | Path, *words: str) -> TrainSettings:
    """The demo's settings, with its prompts written into `folder`. words: flags of `train` over them."""
    from slime_events.app.cli.commands.demo import with_flags
    from slime_events.app.demo.settings import prepare_demo

    return with_flags(prepare_demo(Path(folder).absolute()), words).settings


def start_run(settings: TrainSettings) -> RunProcess:
    """Start a new run. Raises ConfigError, DataError or PlugPointError if the run cannot start with these settings."""
    from slime_events.app.launch.preflight import check_start

    settings = check_settings(settings)
    require_paths(settings)
    check_start(settings)
    folder = RunFolder(settings.run.runs_dir, settings.run.run)
    folder.check_new()
    file, name = tempfile.mkstemp(suffix=".toml", prefix="slime-events-")
    with open(file, "w", encoding="utf-8") as config:
        config.write(settings_toml(settings))
    return RunProcess(("train", "--config", name), folder, config=Path(name))


def resume_run(run: str | Path, *words: str, runs_dir: str | Path = RUNS_DIR) -> RunProcess:
    """Go on with a run that was interrupted, has failed or was killed. words: flags of `slime-events resume`.

    Raises RunNotFound.
    """
    folder = find_run(str(run), runs_dir)
    return RunProcess(("resume", str(folder.path), *words), folder)


def branch_run(run: str | Path, version: int, name: str, *words: str, runs_dir: str | Path | None = None) -> RunProcess:
    """A new run `name` that goes on from a weight version of another. words: flags of `slime-events branch`.

    run: name, folder or archive URL. runs_dir: of both runs; by default the parent's. Raises RunNotFound.
    """
    parent = str(run)
    if is_archive(parent):
        place = Path(runs_dir or RUNS_DIR)
    else:
        found = find_run(parent, runs_dir or RUNS_DIR)
        parent, place = str(found.path), Path(runs_dir or found.path.parent)
    words = ("--from", str(version), "--run", name, "--runs-dir", str(place), *words)
    return RunProcess(("branch", parent, *words), RunFolder(place, name))


def stop_run(run: str | Path, *, runs_dir: str | Path = RUNS_DIR) -> None:
    """Ask the launcher of a run on this machine for a clean end: what is acked stays, `resume_run` goes on with it.

    Raises RunNotFound where there is no such run, or no launcher of it.
    """
    folder = find_run(str(run), runs_dir)
    holder = holder_of(folder)
    if holder is None:
        raise RunNotFound(f"no launcher of run {folder.run} is on here: there is nothing to stop")
    os.kill(holder.pid, signal.SIGINT)


def open_run(
    run: str | Path, *, runs_dir: str | Path = RUNS_DIR, with_parent: bool = False, cache: Path | None = None
) -> OpenRun:
    """A run by name, folder or archive URL, on or over: `with open_run("demo") as run: run.sql(...)`.

    with_parent: of a branch, SQL sees the runs it branched from too. cache: folder of Parquet tables of archives; by
    default one of this user's. Raises RunNotFound, StorageError, ConfigError. Without `with`, call `close` in the end.
    """
    return OpenRun(str(run), runs_dir=runs_dir, with_parent=with_parent, cache=cache)


class OpenRun(OpenTables):
    """A run to ask. `sql(query)` gives an `Answer`; `ask(work)` awaits a function of `opened`, such as `audit(...)`."""

    @property
    def name(self) -> str:
        """The name that the run was started with."""
        return self.opened.run

    @property
    def settings(self) -> TrainSettings:
        """Those in force."""
        return self.opened.settings

    def status(self) -> RunStatus:
        """Where the run stands now. Raises StorageError."""
        return self.ask(read_status(self.opened))

    def events(
        self, *types: str, group: str | None = None, sample: str | None = None, start: int = 1, follow: bool = True
    ) -> Iterator[Recorded]:
        """Events in the order of the log. A run that is on is followed to its end, unless `follow` is False.

        types: whole types (`step.committed`) or nouns (`step`); none for all. start: first position. Raises
        InvalidValue for a type that there is not, and as the log does.
        """
        wanted = Wanted(check_types(types), group, sample, start)
        folder, log = self.opened.folder, self.opened.log
        is_on = None
        if follow and folder is not None and live_address(folder.path, Access.VIEWER) is not None:
            is_on = functools.partial(is_launched, folder, log)
        batches = event_batches(log, wanted, follow=is_on)

        async def batch() -> list[Recorded] | None:
            return await anext(batches, None)

        try:
            while (found := self.ask(batch())) is not None:
                yield from found
        finally:
            self.ask(batches.aclose())

    def agent_request(self, sample: str, turn: int) -> bytes:
        """The body that an agent asked a turn with, byte by byte. sample: of its session. Raises RunNotFound where
        there is no such turn, BlobMissing.
        """
        return self.ask(request_body(self.opened.log, sample, turn, self.opened.fetch))


class RunProcess:
    """A run that was started here. As a context manager it stops the run where the block is left before its end."""

    def __init__(self, words: Sequence[str], folder: RunFolder, *, config: Path | None = None) -> None:
        self._folder, self._config = folder, config
        self._written_before = _written(folder)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 as long as the handle
        words, secrets = kept_words(words)
        self._process = subprocess.Popen(
            own_command("slime_events.app.cli.main", *words),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | own_path() | secrets,
        )
        if config is not None:  # nobody has to `wait`
            weakref.finalize(self, _remove_read, config, folder, self._process)

    @property
    def name(self) -> str:
        """The run's."""
        return self._folder.run

    @property
    def folder(self) -> Path:
        """Where the run keeps everything."""
        return self._folder.path

    @property
    def is_running(self) -> bool:
        """Whether its launcher is."""
        return self._process.poll() is None

    def output(self) -> str:
        """What the launcher has printed so far."""
        end = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), end, 0).decode(errors="replace")

    def events(self, *types: str, **narrow: Any) -> Iterator[Recorded]:
        """As `OpenRun.events`, from the moment that the run's log is there to its end. Raises as `wait`."""
        while self.is_running and _written(self._folder) == self._written_before:
            time.sleep(LOOK_S)  # the launcher writes the run's settings where it starts or resumes the run
        if not self._folder.settings.is_file():
            self.wait()
        with self._open() as run:
            yield from run.events(*types, **narrow)

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The run's summary, once it has ended or was stopped.

        Raises ConfigError where it cannot be started so, TrainerError where it failed, DeadlineExceeded.
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
        """Ask for a clean end, and wait for it: the summary. Raises as `wait`."""
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
        """The run; settings are written just before the log has its first event."""
        while True:
            is_running = self.is_running
            try:
                return open_run(self.folder)
            except RunNotFound:
                if not is_running:
                    raise
            time.sleep(LOOK_S)


def _remove_read(config: Path, folder: RunFolder, launcher: subprocess.Popen[bytes]) -> None:
    """The settings of a run, once its launcher has read them."""
    if folder.settings.is_file() or launcher.poll() is not None:
        config.unlink(missing_ok=True)


def _written(folder: RunFolder) -> int:
    """When the settings in a run's folder were written, in nanoseconds; 0 where there are none."""
    return folder.settings.stat().st_mtime_ns if folder.settings.is_file() else 0
