"""`RunFolder`: the layout of a run's folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any, get_args

from schemas.errors import ConfigError, InvalidValue, RunNotFound
from schemas.subjects import check_token
from storage.file_access import OWNER, FileAccess, limited_files

RUNS_DIR = "slime-runs"
"""Default folder of all runs."""
PARTS = (
    *("nats", "blobs", "archive", "weights", "checkpoints", "snapshots", "seek", "logs", "traces"),
    *("tensorboard", "wandb", "agents"),
    *("nats-url", "address.json", "run.lock", "settings.toml", "summary.json", "restored.json", "ray-token"),
)
"""All that a run writes into its folder."""


class RunFolder:
    """`<runs_dir>/<run>/`.

    nats/        the embedded server's files: the log itself
    blobs/       payloads too large for an event, by sha256
    archive/     segments of the log and their manifest
    weights/     one loadable HF folder per version
    checkpoints/ the trainer's
    snapshots/   the newest states of the conductor and of the launcher: a cache
    seek/        the index for time travel: a cache
    logs/        a file per process
    traces/      span files, a file per process, where no OTLP endpoint is set
    agents/      a folder for each program of --agent-command that runs
    tensorboard/, wandb/  metrics, where --use-tensorboard and --use-wandb have no other folder
    address.json address of the log while the run is on
    run.lock     locked by the launcher while it lives
    settings.toml, summary.json: what the run resolved to, and what it reached
    restored.json  there from a restore until the run is resumed: addresses that the restore was given. Others in the
                   settings are the archive's, and not used
    ray-token      of the Ray that is started for the run
    """

    def __init__(self, runs_dir: str | Path, run: str) -> None:
        self.run = check_token(run, "run name")
        self.path = Path(runs_dir).absolute() / run
        self.nats, self.blobs, self.archive = self.path / "nats", self.path / "blobs", self.path / "archive"
        self.weights, self.checkpoints = self.path / "weights", self.path / "checkpoints"
        self.seek, self.logs, self.traces = self.path / "seek", self.path / "logs", self.path / "traces"
        self.settings, self.summary = self.path / "settings.toml", self.path / "summary.json"
        self.lock, self.restored = self.path / "run.lock", self.path / "restored.json"
        self.ray_token = self.path / "ray-token"
        self.is_ours = False
        """Whether all of a run's files in it were written since `create`."""

    @property
    def named(self) -> str:
        """The run as a command takes it here: its name, and --runs-dir where its folder is not in the usual one."""
        runs_dir = self.path.parent
        return self.run + (f" --runs-dir {runs_dir}" if runs_dir != Path(RUNS_DIR).absolute() else "")

    @classmethod
    def create(cls, runs_dir: str | Path, run: str, access: FileAccess = OWNER) -> RunFolder:
        """A new run's folder. Raises ConfigError as `check_new` does."""
        folder = cls(runs_dir, run)
        folder.check_new()
        folder.is_ours = not any((folder.path / name).exists() for name in PARTS)
        with limited_files(access):
            for part in (folder.nats, folder.logs, folder.traces, folder.weights):
                part.mkdir(parents=True, exist_ok=True)
        return folder

    def check_new(self) -> None:
        """Raise ConfigError where a run of that name is there already."""
        if self.settings.exists():
            raise ConfigError(
                f"{self.path} holds a run already: `slime-events resume {self.named}` goes on with it if it has not "
                "ended; or choose another name with --run, or remove the folder"
            )

    @classmethod
    def find(cls, runs_dir: str | Path, run: str) -> RunFolder:
        """An existing run's folder. Raises RunNotFound that names the existing runs."""
        folder = cls(runs_dir, run)
        if not (folder.path / "settings.toml").exists():
            existing = sorted(p.parent.name for p in Path(runs_dir).glob("*/settings.toml"))
            raise RunNotFound(
                f"no run {run!r} in {Path(runs_dir).absolute()}; there is: {', '.join(existing) or 'none'}"
            )
        return folder

    def remove(self) -> None:
        """Delete everything of the run, and the folder itself if nothing else is in it."""
        for name in PARTS:
            part = self.path / name
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is not empty
            self.path.rmdir()

    def log_name(self) -> str:
        """The name that the run was started with, and so its log's, even in a copy of the folder under another name.

        Raises InvalidValue where its settings cannot be read.
        """
        return str(self._run_setting("run") or self.run)

    def archive_url(self) -> str:
        """Where the run's archivist writes. Raises InvalidValue where its settings cannot be read."""
        return self.address(self._run_setting("archive_url"), self.archive)

    def blob_url(self) -> str:
        """Where the run keeps large payloads. Raises InvalidValue where its settings cannot be read."""
        return self.address(self._run_setting("blob_url"), self.blobs)

    def trusted(self) -> frozenset[str] | None:
        """Addresses that a restore was given, where the run was not resumed since; None where all are its user's."""
        try:
            return frozenset(json.loads(self.restored.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):  # damaged: nothing is known to be the user's
            return frozenset()

    def file_access(self) -> FileAccess:
        """Who may read it, by its settings. Raises InvalidValue where they cannot be read."""
        chosen: Any = self._run_setting("file_access") if self.settings.exists() else None
        return chosen if chosen in get_args(FileAccess) else OWNER

    def address(self, recorded: object, own: Path) -> str:
        """An address of the run's settings; `own` where there is none, or where only an archive says it."""
        trusted = self.trusted() if recorded else None
        return str(own if not recorded or (trusted is not None and recorded not in trusted) else recorded)

    def _run_setting(self, name: str) -> object:
        """One setting of its [run] table; None where it is not set."""
        try:
            settings = tomllib.loads(self.settings.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidValue(f"{self.settings} cannot be read: {error}") from error
        return settings.get("run", {}).get(name)


def find_run(run: str, runs_dir: str | Path = RUNS_DIR) -> RunFolder:
    """The folder of an existing run, by name or path.

    Raises RunNotFound that names the existing runs, InvalidSubject for an invalid name.
    """
    path = Path(run)
    if "/" in run or run in (".", ".."):
        whole = path.resolve()
        return RunFolder.find(whole.parent, whole.name)
    return RunFolder.find(runs_dir, run)
