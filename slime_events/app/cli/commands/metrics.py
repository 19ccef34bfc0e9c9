"""`slime-events metrics`: print slime's metrics of a run, or write them to TensorBoard, W&B or a collector."""

import argparse
import asyncio
import contextlib
import functools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from msgspec.structs import replace

from schemas.errors import InvalidValue
from slime_events.analysis.metrics.fold import AXES, MetricsFold, MetricsRow, axis_of
from slime_events.app.cli.commands.resume_run import with_flags
from slime_events.app.cli.render.text import json_line, table
from slime_events.app.follow_events import EventFilter, event_batches
from slime_events.app.launch.run_record import changes
from slime_events.app.launch.run_status import is_launched
from slime_events.app.loggers.logger import LoggedRun, Logger
from slime_events.app.loggers.open_loggers import logger_flags, open_loggers
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.core.run.run_settings import flag_of

Points = dict[str, tuple[int, float, float, float]]
"""Number of values, first value, last value and step of the last value, by metric."""


async def run(arguments: argparse.Namespace) -> int:
    """Print a table, or each row with --json; or write to the loggers that flags name."""
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        settings = _settings(opened.settings, arguments.flags)
        follows = arguments.follow and opened.folder is not None
        if follows and not arguments.json and not any(logger_flags(settings.metrics)):
            raise InvalidValue(
                "--follow needs --use-tensorboard, --use-wandb or --use-otlp to write to, or --json to print"
            )
        places, points = await _read(opened, settings, follows=follows, prints=arguments.json)
    for place in places:
        print(f"{len(points)} metrics of {opened.run} in {place}", file=sys.stderr)
    if not arguments.json and not places:
        lines = [(name, *figures) for name, figures in sorted(points.items())]
        print(table(("metric", "points", "first", "last", "at step"), lines))
    return 0


def _settings(own: TrainSettings, flags: Sequence[str]) -> TrainSettings:
    """Return the run's settings with only those loggers that flags name. Raises InvalidValue."""
    own = replace(own, metrics=replace(own.metrics, use_tensorboard=False, use_wandb=False, use_otlp=False))
    if not flags:
        return own
    settings = with_flags(own, flags).settings
    changed = changes(with_flags(own, ()).settings, settings)
    if wrong := [flag_of(field) for part, fields in changed.items() if part != "metrics" for field in fields]:
        raise InvalidValue(f"{', '.join(wrong)} cannot be changed here: give only flags of the loggers")
    return replace(own, metrics=settings.metrics)


async def _read(opened: OpenedRun, settings: TrainSettings, *, follows: bool, prints: bool) -> tuple[list[str], Points]:
    """Write and print the run's rows until now, or until the run ends. Returns the loggers' places and the points."""
    async with contextlib.aclosing(opened.log.read()) as events:  # type: ignore[type-var]
        started = (await anext(events)).envelope.at
    run = LoggedRun(opened.run, started, opened.folder.path if opened.folder else Path.cwd())
    fold, points = MetricsFold(settings, opened.fetch), Points()
    is_running = functools.partial(is_launched, opened.folder, opened.log) if opened.folder and follows else None
    loggers = await asyncio.to_thread(open_loggers, settings, run)
    with contextlib.ExitStack() as stack:
        for logger in loggers:
            stack.callback(logger.close)
        async for batch in event_batches(opened.log, EventFilter(), follow=is_running):
            new = [row for recorded in batch if (row := fold.apply(recorded)) is not None]
            await asyncio.to_thread(_write, loggers, new)
            for row in new:
                _count(points, row)
                if prints:
                    print(json_line(asdict(row)), flush=True)
    return [logger.where for logger in loggers], points


def _write(loggers: Iterable[Logger], rows: Iterable[MetricsRow]) -> None:
    for row in rows:
        for logger in loggers:
            logger.write(row)


def _count(points: Points, row: MetricsRow) -> None:
    for name, value in row.values.items():
        if name not in AXES.values():
            count, first, *_ = points.get(name, (0, value))
            points[name] = count + 1, first, value, row.values[axis_of(name)]
