"""`TensorBoardLogger`: write a run's metrics to one event file, with TensorBoard's own writer."""

import os
from collections import defaultdict
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from slime_events.analysis.metrics.fold import AXES, MetricsRow, axis_of
from slime_events.app.loggers.logger import LoggedRun
from slime_events.core.config.metrics import MetricsSettings

NANO = 1e-9


def tensorboard_folder(settings: MetricsSettings, run: LoggedRun) -> Path:
    """Return slime's folder if the variable TENSORBOARD_DIR or a flag names one, else a folder of the run."""
    if folder := os.environ.get("TENSORBOARD_DIR"):
        return Path(folder)
    if settings.tb_project_name is None and settings.tb_experiment_name is None:
        return run.folder / "tensorboard"
    return Path("tensorboard_log", settings.tb_project_name or "slime-events", settings.tb_experiment_name or run.name)


class TensorBoardLogger:
    """Writes points with the times of their events.

    The file replaces the file that an earlier process wrote for the same run, so that no point appears twice.
    """

    def __init__(self, settings: MetricsSettings, run: LoggedRun) -> None:
        folder, suffix = tensorboard_folder(settings, run), f".{run.name}.{run.id}"
        self.where = str(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for older in folder.glob(f"events.out.tfevents.*{suffix}"):
            older.unlink()
        self._writer = EventFileWriter(str(folder), filename_suffix=suffix)
        # Makes a TensorBoard that has read the older file forget its points.
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=run.started * NANO, step=0, session_log=start))

    def write(self, row: MetricsRow) -> None:
        by_step = defaultdict[int, list[Summary.Value]](list)
        for name, value in row.values.items():
            if name not in AXES.values():
                by_step[int(row.values[axis_of(name)])].append(Summary.Value(tag=name, simple_value=value))
        for step, values in by_step.items():
            self._writer.add_event(Event(wall_time=row.at * NANO, step=step, summary=Summary(value=values)))

    def close(self) -> None:
        self._writer.close()
