"""`slime-events trace export`: send or write the spans of a past run, or its timeline for Perfetto."""

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from schemas.errors import InvalidValue
from slime_events.analysis.lanes.chrome_trace import TimelineExport, chrome_trace
from slime_events.analysis.lanes.lanes import Lanes, sql_between
from slime_events.analysis.query import tables_of
from slime_events.analysis.timetravel.log_position import parse_position
from slime_events.analysis.timetravel.read_moment import open_timeline
from slime_events.analysis.traces.export_spans import export_spans
from slime_events.app.cli.files import new_file
from slime_events.app.cli.render.text import json_text
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.core.telemetry.exporters import FileExporter, OtlpExporter
from slime_events.model.json_values import plain


async def run(arguments: argparse.Namespace) -> int:
    """Export the spans, or the timeline, and print how much."""
    _check(arguments)
    to = str(arguments.otlp or arguments.out)
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        first, last = await _stretch(opened, arguments.begin, arguments.end)
        if arguments.perfetto:
            return await _write_timeline(opened, arguments, first, last)
        with _exporter(arguments, opened.run) as exporter:
            exported = await export_spans(opened.log, exporter, to, first=first, last=last, share=arguments.share)
    if arguments.json:
        sys.stdout.write(json_text(plain(exported)))
    else:
        print(
            f"{exported.spans:,} spans of {exported.traces:,} traces, from positions {exported.first:,} to "
            f"{exported.last:,} of run {exported.run}, are in {to}"
        )
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise InvalidValue for arguments that cannot be together."""
    if sum(map(bool, (arguments.otlp, arguments.out, arguments.perfetto))) != 1:
        raise InvalidValue(
            "give one of --otlp URL to send the spans, --out FILE to write them, and --perfetto FILE to write the "
            "timeline"
        )
    if not 0 <= arguments.share <= 1:
        raise InvalidValue(f"--share is {arguments.share:g}: it must be from 0 to 1")
    if arguments.perfetto and arguments.share < 1:
        raise InvalidValue("--share chooses spans: --perfetto writes the timeline, which has no traces. Leave it out.")


async def _write_timeline(opened: OpenedRun, arguments: argparse.Namespace, first: int, last: int | None) -> int:
    """Write the intervals that end in a stretch of the log, and print how many."""
    async with tables_of(opened) as tables:
        table = (await tables.sql(sql_between(first, last))).arrow()
    lanes = Lanes.of(table)
    with new_file(arguments.perfetto) as file:
        file.writelines(chrome_trace(lanes, opened.run, 0.0, lanes.length))
    written = TimelineExport(run=opened.run, first=first, last=last, intervals=len(table), lanes=len(lanes.every))
    if arguments.json:
        sys.stdout.write(json_text(plain(written)))
    else:
        print(
            f"{written.intervals:,} intervals in {written.lanes} lanes of run {opened.run} are in "
            f"{arguments.perfetto}. Open it at https://ui.perfetto.dev"
        )
    return 0


@contextmanager
def _exporter(arguments: argparse.Namespace, run: str) -> Iterator[FileExporter | OtlpExporter]:
    """Return the exporter of the arguments; close it at the end. Raises InvalidValue, NoSpace, StoreUnavailable."""
    resource: dict[str, str | int] = {"service.namespace": "slime-events", "service.name": "trace-export"}
    resource["rl.run.id"] = run
    if arguments.out:
        with new_file(arguments.out) as file:
            exporter = FileExporter(file, resource)
            yield exporter
            exporter.end(0)
        return
    if urlsplit(arguments.otlp).scheme not in ("http", "https"):
        raise InvalidValue(f"--otlp {arguments.otlp}: give the URL of an OTLP/HTTP endpoint, as http://localhost:4318")
    sender = OtlpExporter(arguments.otlp, resource)
    # Without a handler, Python prints warnings: each retry of the exporter, before the error of this command.
    quiet, retries = logging.NullHandler(), logging.getLogger("opentelemetry")
    retries.addHandler(quiet)
    try:
        yield sender
    finally:
        sender.shutdown()
        retries.removeHandler(quiet)


async def _stretch(opened: OpenedRun, begin: str | None, end: str | None) -> tuple[int, int | None]:
    """Return the first and the last position of the stretch. Raises InvalidValue, RunNotFound."""
    if begin is None and end is None:
        return 1, None
    timeline = await open_timeline(opened)
    positions = []
    for text in (begin, end):
        positions.append(None if text is None else (await timeline.seek(parse_position(text))).position)
    first, last = positions[0] or 1, positions[1]
    if last is not None and last < first:
        raise InvalidValue(f"--to is position {last:,}, before --from, which is position {first:,}")
    return first, last
