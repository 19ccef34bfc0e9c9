"""`slime-events audit`: every check of a run's whole history. Exit code 0 where it is clean, 1 where it is not."""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import TypedDict

import msgspec

from schemas.errors import SlimeEventsError
from slime_events.analysis.audit.audit import Audit, Report, audit, report_text
from slime_events.analysis.audit.ledger import Ledger, read_ledger
from slime_events.analysis.audit.recorded_rollouts import RecordedEnds, recorded_ends
from slime_events.app.cli.files import blob_url
from slime_events.app.cli.render.text import json_text
from slime_events.core.run.run_folder import RunFolder, find_run
from slime_events.core.run.run_reader import branched_of, is_archive, open_archive, open_run
from storage.archive.log import ArchivedLog
from storage.log import Readable, Recorded


def run(arguments: argparse.Namespace) -> int:
    """Print the report. Errors are raised."""
    begun = time.perf_counter()
    where = arguments.run if arguments.archive is None else f"{arguments.archive.rstrip('/')}/{arguments.run}"
    if arguments.archive is not None or is_archive(where):
        report = asyncio.run(_audit_archive(where, files=not arguments.no_files))
    else:
        report = asyncio.run(_audit_run(find_run(arguments.run, arguments.runs_dir), files=not arguments.no_files))
    seconds = time.perf_counter() - begun
    if arguments.json:
        facts = msgspec.to_builtins(report) | {"clean": report.clean, "seconds": seconds}
        for check, checked in zip(facts["checks"], report.checks, strict=True):
            for plain, finding in zip(check["findings"], checked.findings, strict=True):
                plain["sentence"] = str(finding)
        sys.stdout.write(json_text(facts))
    else:
        sys.stdout.write(f"{report_text(report, arguments.most)}\n\n{_verdict(report, seconds)}\n")
    return 0 if report.clean else 1


async def _audit_run(folder: RunFolder, *, files: bool) -> Report:
    from storage.blobs import BlobStore
    from storage.open_log import open_run_log
    from storage.payloads import fetch

    name = folder.log_name()
    async with open_run_log(folder.path, name) as log:
        blobs = BlobStore(blob_url(folder)) if files else None
        read = None if blobs is None else lambda array: fetch(array, blobs)
        others = await _others(log)
        return await audit(log.read(), Audit(name, fetch=read, weights=folder.weights, files=files, **others))


async def _audit_archive(where: str, *, files: bool) -> Report:
    """The archived log and its blobs; without the run's folder there are no weights to check.

    Not through `open_run`, which raises for damage that belongs into the report.
    """
    from storage.payloads import fetch

    reader = open_archive(where)

    async def records() -> AsyncIterator[Recorded]:
        for recorded in reader.read():
            yield recorded

    read = (lambda array: fetch(array, reader.blobs)) if files else None
    others = await _others(ArchivedLog(reader, reader.run))
    return await audit(records(), Audit(reader.run, fetch=read, files=False, **others))


class Others(TypedDict):
    """This run's rollouts in the logs of other runs; arguments of `Audit`."""

    parent: Ledger | None
    recorded: RecordedEnds | None


async def _others(log: Readable) -> Others:
    recorded = None
    try:
        recorded = await recorded_ends(log)
    except SlimeEventsError as error:
        print(f"recorded rollouts are not looked up: {error}", file=sys.stderr)
    return Others(parent=await _followed(log), recorded=recorded)


async def _followed(log: Readable) -> Ledger | None:
    """The ledger of the run whose rollouts this one trains on; None for no learner, or where that run is gone."""
    branched = None
    with contextlib.suppress(SlimeEventsError):  # a damaged log, or one without run.started: the report says so
        branched = await branched_of(log)
    if branched is None or not branched.follows:
        return None
    try:
        async with open_run(branched.where) as parent:
            return await read_ledger(parent.run, parent.log.read())
    except SlimeEventsError as error:
        print(f"its rollouts are not looked at: {error}", file=sys.stderr)
        return None


def _verdict(report: Report, seconds: float) -> str:
    pace = f"{report.events:,} events in {seconds:.1f} s"
    if report.clean:
        return f"run {report.run} is clean: {len(report.checks)} checks, {pace}"
    unread = "" if report.unread is None else " and was not read to its end"
    return f"run {report.run} has {len(report.findings)} findings{unread}: {len(report.checks)} checks, {pace}"
