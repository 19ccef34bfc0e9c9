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
"""Default parent folder of run folders."""
PARTIAL_SETTINGS = "settings.toml.part"
PARTS = (
    *("nats", "blobs", "archive", "weights", "checkpoints", "snapshots", "seek", "logs"),
    *("tensorboard", "wandb", "agents", "traces"),
    *("nats-url", "address.json", "run.lock", "settings.toml", "summary.json", "restored.json", "ray-token"),
    "shared",
    PARTIAL_SETTINGS,
)
"""All files and folders that a run writes in its folder. Earlier releases wrote spans into traces/."""


class RunFolder:
    """`<runs_dir>/<run>/`.

    nats/        files of the embedded server: the log itself
    blobs/       payloads too large for an event, by sha256
    archive/     segments of the log and their manifest
    weights/     a loadable Hugging Face folder per version
    checkpoints/ of the trainer
    snapshots/   newest states of the conductor and of the launcher (a cache)
    seek/        index for time travel (a cache)
    logs/        a file per process
    agents/      a folder for each running program of --agent-command
    tensorboard/, wandb/  metrics, if --use-tensorboard and --use-wandb have no other folder
    address.json address of the log while the run is running
    run.lock     locked by the launcher while it is alive
    settings.toml, summary.json: the resolved settings, and the results
    restored.json  after a restore until the run is resumed: the addresses given to the restore. Further addresses in
                   the settings are from the archive, and are not used
    ray-token      token of the Ray cluster that is started for the run
    """

    def __init__(self, runs_dir: str | Path, run: str) -> None:
        self.run = check_token(run, "run name")
        self.path = Path(runs_dir).absolute() / run
        self.nats, self.blobs, self.archive = self.path / "nats", self.path / "blobs", self.path / "archive"
        self.weights, self.checkpoints = self.path / "weights", self.path / "checkpoints"
        self.seek, self.logs = self.path / "seek", self.path / "logs"
        self.settings, self.summary = self.path / "settings.toml", self.path / "summary.json"
        self.lock, self.restored = self.path / "run.lock", self.path / "restored.json"
        self.ray_token = self.path / "ray-token"
        self.is_ours = False
        """Whether all files of a run in this folder were written since `create`."""

    @property
    def named(self) -> str:
        """The run as an argument of a command: its name, with --runs-dir if its folder is not in the default one."""
        runs_dir = self.path.parent
        return self.run + (f" --runs-dir {runs_dir}" if runs_dir != Path(RUNS_DIR).absolute() else "")

    @classmethod
    def create(cls, runs_dir: str | Path, run: str, access: FileAccess = OWNER) -> RunFolder:
        """Create the folder of a new run. Raises ConfigError if it has a run."""
        folder = cls(runs_dir, run)
        folder.check_new()
        folder.is_ours = not any((folder.path / name).exists() for name in PARTS)
        with limited_files(access):
            for part in (folder.nats, folder.logs, folder.weights):
                part.mkdir(parents=True, exist_ok=True)
        return folder

    def check_new(self) -> None:
        """Raise ConfigError if the folder has a run."""
        if self.settings.exists():
            raise ConfigError(
                f"{self.path} already has a run. Resume it with `slime-events resume {self.named}` if it has not "
                "ended, choose another name with --run, or remove the folder"
            )

    @classmethod
    def find(cls, runs_dir: str | Path, run: str) -> RunFolder:
        """Return the folder of an existing run. Raises RunNotFound, with the names of the existing runs."""
        folder = cls(runs_dir, run)
        if not (folder.path / "settings.toml").exists():
            existing = sorted(p.parent.name for p in Path(runs_dir).glob("*/settings.toml"))
            raise RunNotFound(
                f"no run {run!r} in {Path(runs_dir).absolute()}. Its runs: {', '.join(existing) or 'none'}"
            )
        return folder

    def write_settings(self, text: str) -> None:
        """Write the settings. A reader, which may wait for the file, never sees a part of it."""
        partial = self.path / PARTIAL_SETTINGS
        partial.write_text(text, encoding="utf-8")
        partial.replace(self.settings)

    def remove(self) -> None:
        """Delete all files of the run, and the folder itself if it is empty then."""
        for name in PARTS:
            part = self.path / name
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            self.path.rmdir()

    def log_name(self) -> str:
        """Return the name that the run was started with, which its log has even if the folder was copied or renamed.

        Raises InvalidValue if its settings cannot be read.
        """
        return str(self._run_setting("run") or self.run)

    def archive_url(self) -> str:
        """Return the URL of the run's archive. Raises InvalidValue if its settings cannot be read."""
        return self.address(self._run_setting("archive_url"), self.archive)

    def blob_url(self) -> str:
        """Return the URL of large payloads. Raises InvalidValue if its settings cannot be read."""
        return self.address(self._run_setting("blob_url"), self.blobs)

    def weights_url(self) -> str:
        """Return the path or URL of the weight versions. Raises InvalidValue if its settings cannot be read."""
        url = self.address(self._run_setting("weights_url"), self.weights)
        return url if url == str(self.weights) else under_name(url, self.log_name())

    def checkpoints_url(self) -> str:
        """Return the path or URL of the trainer's checkpoints. Raises InvalidValue if its settings cannot be read."""
        return self.address(self._setting("trainer", "save"), self.checkpoints)

    def trusted(self) -> frozenset[str] | None:
        """Return the addresses given to a restore, until the run is resumed; None if all addresses are trusted."""
        try:
            return frozenset(json.loads(self.restored.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):  # damaged: trust no address
            return frozenset()

    def file_access(self) -> FileAccess:
        """Return who may read the run's files. Raises InvalidValue if its settings cannot be read."""
        chosen: Any = self._run_setting("file_access") if self.settings.exists() else None
        return chosen if chosen in get_args(FileAccess) else OWNER

    def address(self, recorded: object, own: Path) -> str:
        """Return a recorded address, or `own` if there is none or it is not trusted."""
        trusted = self.trusted() if recorded else None
        return str(own if not recorded or (trusted is not None and recorded not in trusted) else recorded)

    def _run_setting(self, name: str) -> object:
        return self._setting("run", name)

    def _setting(self, table: str, name: str) -> object:
        """Return a setting of a table; None if it is not set."""
        try:
            settings = tomllib.loads(self.settings.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidValue(f"{self.settings} cannot be read: {error}") from error
        return settings.get(table, {}).get(name)


def under_name(url: str, run: str) -> str:
    """Return the URL of what a run has at a URL that runs share."""
    return f"{url.rstrip('/')}/{run}"


def find_run(run: str, runs_dir: str | Path = RUNS_DIR) -> RunFolder:
    """Return the folder of an existing run, by name or path.

    Raises RunNotFound, with the names of the existing runs, and InvalidSubject for an invalid name.
    """
    path = Path(run)
    if "/" in run or run in (".", ".."):
        whole = path.resolve()
        return RunFolder.find(whole.parent, whole.name)
    return RunFolder.find(runs_dir, run)
