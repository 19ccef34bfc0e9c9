"""`RunFolder`: where a run keeps what."""

from __future__ import annotations

import contextlib
import shutil
import tomllib
from pathlib import Path

from schemas.errors import ConfigError, InvalidValue, RunNotFound
from schemas.subjects import check_token

RUNS_DIR = "slime-runs"
"""Where runs are kept if nobody says otherwise."""
PARTS = (
    *("nats", "blobs", "archive", "weights", "checkpoints", "snapshots", "seek", "logs", "traces"),
    *("nats-url", "address.json", "run.lock", "settings.toml", "summary.json"),
)
"""What a run keeps in its folder."""


class RunFolder:
    """`<runs_dir>/<run>/`.

    nats/        the embedded server's files: the log itself
    blobs/       payloads too large for an event, by sha256
    archive/     segments of the log and their manifest
    weights/     one loadable HF folder per version
    checkpoints/ the trainer's
    snapshots/   the newest states of the conductor: a cache
    seek/        moments for time travel: a cache
    logs/        a file per process
    traces/      spans, a file per process, where no OTLP endpoint is set
    address.json where the log answers while the run is on
    run.lock     locked by the launcher as it lives
    settings.toml, summary.json
    """

    def __init__(self, runs_dir: str | Path, run: str) -> None:
        self.run = check_token(run, "run name")
        self.path = Path(runs_dir).absolute() / run
        self.is_ours = False
        """Whether all that is in it of a run has come there since `create`."""

    @classmethod
    def create(cls, runs_dir: str | Path, run: str) -> RunFolder:
        """A new run's folder. Raises ConfigError where a run of that name is there already."""
        folder = cls(runs_dir, run)
        if (folder.path / "settings.toml").exists():
            raise ConfigError(
                f"{folder.path} holds a run already: choose another name with --run, or remove the folder"
            )
        folder.is_ours = not any((folder.path / name).exists() for name in PARTS)
        for part in (folder.nats, folder.logs, folder.traces, folder.weights):
            part.mkdir(parents=True, exist_ok=True)
        return folder

    @classmethod
    def find(cls, runs_dir: str | Path, run: str) -> RunFolder:
        """An existing run's folder. Raises RunNotFound with the runs there are."""
        folder = cls(runs_dir, run)
        if not (folder.path / "settings.toml").exists():
            there = sorted(p.parent.name for p in Path(runs_dir).glob("*/settings.toml"))
            raise RunNotFound(f"no run {run!r} in {Path(runs_dir).absolute()}; there is: {', '.join(there) or 'none'}")
        return folder

    def remove(self) -> None:
        """Everything of the run, and the folder itself where nothing else lies in it."""
        for name in PARTS:
            part = self.path / name
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is not empty
            self.path.rmdir()

    def log_name(self) -> str:
        """The name that the run was started with: that of its log, also where the folder was copied under another.

        Raises InvalidValue where its settings cannot be read.
        """
        return str(self._said("run") or self.run)

    def archive_url(self) -> str:
        """Where the run's archivist writes. Raises InvalidValue where its settings cannot be read."""
        return str(self._said("archive_url") or self.archive)

    def _said(self, name: str) -> object:
        """One of the run's own settings; None where it is not set."""
        try:
            settings = tomllib.loads(self.settings.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidValue(f"{self.settings} cannot be read: {error}") from error
        return settings.get("run", {}).get(name)

    @property
    def nats(self) -> Path:
        """The embedded server's folder."""
        return self.path / "nats"

    @property
    def blobs(self) -> Path:
        """Default blob store."""
        return self.path / "blobs"

    @property
    def archive(self) -> Path:
        """Default archive."""
        return self.path / "archive"

    @property
    def seek(self) -> Path:
        """The index for time travel."""
        return self.path / "seek"

    @property
    def weights(self) -> Path:
        """Weight versions."""
        return self.path / "weights"

    @property
    def checkpoints(self) -> Path:
        """Trainer checkpoints."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """Process logs."""
        return self.path / "logs"

    @property
    def traces(self) -> Path:
        """Span files."""
        return self.path / "traces"

    @property
    def lock(self) -> Path:
        """Who launches the run."""
        return self.path / "run.lock"

    @property
    def settings(self) -> Path:
        """What the run resolved to."""
        return self.path / "settings.toml"

    @property
    def summary(self) -> Path:
        """What was reached."""
        return self.path / "summary.json"


def find_run(run: str, runs_dir: str | Path = RUNS_DIR) -> RunFolder:
    """The folder of an existing run, by name or path. Raises RunNotFound with the runs there are, InvalidSubject for
    an odd name.
    """
    path = Path(run)
    if "/" in run or run in (".", ".."):
        whole = path.resolve()
        return RunFolder.find(whole.parent, whole.name)
    return RunFolder.find(runs_dir, run)
