"""`WandbLogger`: write a run's metrics to Weights & Biases, with slime's names and axes."""

import shutil
from pathlib import Path

import msgspec
import wandb

from schemas.errors import StoreUnavailable
from schemas.references import expand
from schemas.trust import check_trusted
from slime_events.analysis.metrics.fold import AXES, MetricsRow
from slime_events.app.loggers.logger import LoggedRun, wandb_mode
from slime_events.core.config.settings import TrainSettings

POSITION = "log/position"
"""Metric with the position of a row's event: at a resumption W&B returns the newest."""
MARK = "slime-events"
"""Name of a file in the folder of an offline W&B run, with the id of the run that it logs."""


class WandbLogger:
    """Online, continues after the newest row that W&B has.

    An offline W&B run cannot be continued: all rows are written again, and the offline run of an earlier process is
    removed.
    """

    def __init__(self, settings: TrainSettings, run: LoggedRun) -> None:
        own, mode = settings.metrics, wandb_mode(settings.metrics)
        name, tail = own.wandb_group or run.name, f"_{run.id[-6:]}" if own.wandb_random_suffix else ""
        folder = Path(own.wandb_dir) if own.wandb_dir else run.folder
        folder.mkdir(parents=True, exist_ok=True)
        if mode == "offline":
            _remove_older(folder, run)
        check_trusted(own.wandb_host or "")  # the host receives the user's key
        access = {"api_key": expand(own.wandb_key or ""), "base_url": own.wandb_host}
        try:
            self._run = wandb.init(
                entity=own.wandb_team,
                project=own.wandb_project,
                group=own.wandb_group and own.wandb_group + tail,
                name=name + tail,
                id=own.wandb_run_id or run.id,
                resume="allow",
                mode=mode,  # type: ignore[arg-type, unused-ignore]  # one of its choices
                dir=str(folder),
                config=msgspec.to_builtins(settings),
                settings=wandb.Settings(console="off", **{key: value for key, value in access.items() if value}),
            )
        except (wandb.Error, OSError) as error:
            raise StoreUnavailable(f"cannot write to Weights & Biases: {error}") from error
        self.where = str(self._run.settings.sync_dir if mode == "offline" else self._run.url)
        if mode == "offline":
            Path(self.where, MARK).write_text(run.id)
        for axis in set(AXES.values()):
            self._run.define_metric(axis)
        for prefix, axis in AXES.items():
            self._run.define_metric(f"{prefix}/*", step_metric=axis)
        self._run.define_metric(POSITION, hidden=True)
        self._written = int(self._run.summary.get(POSITION) or 0)

    def write(self, row: MetricsRow) -> None:
        if row.position > self._written:
            self._run.log(row.values | {POSITION: row.position})

    def close(self) -> None:
        self._run.finish()


def _remove_older(folder: Path, run: LoggedRun) -> None:
    for mark in folder.glob(f"wandb/offline-run-*/{MARK}"):
        if mark.read_text() == run.id:
            shutil.rmtree(mark.parent)
