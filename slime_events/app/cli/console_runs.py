"""`ServedRuns`: what `slime-events console` serves: a folder of runs, one run, or one archive."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

from schemas.errors import InvalidSubject, RunNotFound, SlimeEventsError
from serve_apps.http.console.run_source import ListedRun
from slime_events.app.cli.run_list import RunRow, row_of, rows_of
from slime_events.app.launch.run_status import is_launched
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder, find_run
from slime_events.core.run.run_reader import OpenedRun, is_archive, open_run
from slime_events.model import read_run
from slime_events.model.run_status import status_of

NANO = 1e-9


class ServedRuns:
    """The runs in a folder, or one of them. only: the one run that is served; None: all."""

    def __init__(self, runs_dir: Path, only: str | None = None) -> None:
        self.runs_dir, self._only = runs_dir, only

    @property
    def where(self) -> str:
        return str(self.runs_dir / self._only if self._only else self.runs_dir)

    @property
    def folder(self) -> Path:
        """Folder that has the tokens of who may read."""
        return Path(self.where)

    async def listed(self) -> tuple[ListedRun, ...]:
        if self._only is not None:
            return (_listed(await row_of(RunFolder(self.runs_dir, self._only))),)
        return tuple(map(_listed, await rows_of(self.runs_dir)))

    @contextlib.asynccontextmanager
    async def open(self, run: str) -> AsyncIterator[OpenedRun]:
        async with open_run(str(self._folder(run).path)) as opened:
            yield opened

    def argument(self, run: str) -> str:
        folder = self._folder(run)
        named = [run, "--runs-dir", str(folder.path.parent)]
        if run.startswith("-"):  # a command would read it as a flag
            named = [str(folder.path)]
        elif folder.path.parent == Path(RUNS_DIR).absolute():
            named = [run]
        return shlex.join(named)

    async def is_on(self, opened: OpenedRun) -> bool:
        return opened.folder is not None and bool(await is_launched(opened.folder, opened.log))

    def _folder(self, run: str) -> RunFolder:
        """Return the folder of a served run. Raises RunNotFound, also for a name that no run can have."""
        if self._only not in (None, run):
            raise RunNotFound(f"no run {run!r} is served here: this console serves {self._only}")
        try:
            return RunFolder.find(self.runs_dir, run)
        except InvalidSubject as error:
            raise RunNotFound(f"no run {run!r}: {error}") from None


class ServedArchive:
    """One archived run. url: of the archive."""

    folder = None

    def __init__(self, url: str) -> None:
        self.where = url
        self._run = url.rstrip("/").rpartition("/")[2]

    async def check(self) -> None:
        """Raise RunNotFound or StorageError if the archive cannot be read."""
        async with open_run(self.where):
            pass

    async def listed(self) -> tuple[ListedRun, ...]:
        try:
            async with open_run(self.where) as opened:
                run = await read_run(opened.log)
                end = run.lifetime[-1].event if run.lifetime else None
                steps = sum(step.committed is not None for step in run.steps.values())
                target, at = opened.settings.rollout.num_rollout, run.last_at
                return (_listed(RunRow(self._run, status_of(end, False), steps, target, at)),)
        except SlimeEventsError as error:
            return (_listed(RunRow(self._run, None, reason=str(error))),)

    @contextlib.asynccontextmanager
    async def open(self, run: str) -> AsyncIterator[OpenedRun]:
        self.argument(run)
        async with open_run(self.where) as opened:
            yield opened

    def argument(self, run: str) -> str:
        if run != self._run:
            raise RunNotFound(f"no run {run!r} is served here: this console serves {self._run}")
        return shlex.quote(self.where)

    async def is_on(self, opened: OpenedRun) -> bool:
        return False


def served(run: str | None, runs_dir: str) -> ServedRuns | ServedArchive:
    """Return what to serve. run: name or folder of a run, URL of an archive, or a folder of runs; None: all of
    `runs_dir`. Raises RunNotFound.
    """
    if run is None:
        return _folder_of_runs(Path(runs_dir))
    if is_archive(run):
        return ServedArchive(run)
    if Path(run).is_dir() and not Path(run, "settings.toml").exists() and any(Path(run).glob("*/settings.toml")):
        return _folder_of_runs(Path(run))
    folder = find_run(run, runs_dir)
    return ServedRuns(folder.path.parent, folder.run)


def _folder_of_runs(path: Path) -> ServedRuns:
    if not path.is_dir():
        raise RunNotFound(f"there is no folder {path.absolute()}: give RUN, the URL of an archive, or a folder of runs")
    return ServedRuns(path.absolute())


def _listed(row: RunRow) -> ListedRun:
    return ListedRun(
        run=row.run,
        status=row.status,
        steps=row.steps,
        target=row.target,
        at=None if row.at is None else row.at * NANO,
        reason=row.reason,
    )
