"""`slime-events audit`: check a run's whole history. Exit code 0 if it is clean, else 1."""

import argparse
import contextlib
import sys
import time

import msgspec

from schemas.errors import SlimeEventsError
from slime_events.analysis.audit.audit import Audit, Report, audit, report_text
from slime_events.analysis.audit.ledger import Ledger, read_ledger
from slime_events.analysis.audit.recorded_rollouts import RecordedEnds, recorded_ends
from slime_events.app.cli.render.text import json_text
from slime_events.core.run.run_folder import RunFolder, find_run
from slime_events.core.run.run_reader import branched_of, is_archive, open_archive, open_run
from storage.archive.log import ArchivedLog
from storage.blobs import BlobStore
from storage.log import Readable
from storage.open_log import open_run_log
from storage.payloads import fetch


async def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 1 if there is any finding."""
    begun = time.perf_counter()
    where = arguments.run if arguments.archive is None else f"{arguments.archive.rstrip('/')}/{arguments.run}"
    if arguments.archive is not None or is_archive(where):
        report = await _audit_archive(where, files=not arguments.no_files)
    else:
        report = await _audit_run(find_run(arguments.run, arguments.runs_dir), files=not arguments.no_files)
    seconds = time.perf_counter() - begun
    if arguments.json:
        facts = msgspec.to_builtins(report) | {"clean": report.clean, "seconds": seconds}
        for check, checked in zip(facts["checks"], report.checks, strict=True):
            for values, finding in zip(check["findings"], checked.findings, strict=True):
                values["sentence"] = str(finding)
        sys.stdout.write(json_text(facts))
    else:
        print(f"{report_text(report, arguments.most)}\n\n{_verdict(report, seconds)}")
    return 0 if report.clean else 1


async def _audit_run(folder: RunFolder, *, files: bool) -> Report:
    name = folder.log_name()
    async with open_run_log(folder.path, name) as log:
        blobs = BlobStore(folder.blob_url()) if files else None
        read = None if blobs is None else lambda array: fetch(array, blobs)
        recorded, parent = await _recorded(log), await _followed(log)
        checks = Audit(name, fetch=read, weights=folder.weights, files=files, parent=parent, recorded=recorded)
        return await audit(log.read_records(), checks)


async def _audit_archive(where: str, *, files: bool) -> Report:
    """Audit the archived log and its blobs. The weights are in the run's folder, so they are not checked.

    `open_run` would raise for damage that belongs into the report.
    """
    reader = open_archive(where)
    log = ArchivedLog(reader, reader.run)

    read = (lambda array: fetch(array, reader.blobs)) if files else None
    recorded, parent = await _recorded(log), await _followed(log)
    return await audit(log.read_records(), Audit(reader.run, fetch=read, files=False, parent=parent, recorded=recorded))


async def _recorded(log: Readable) -> RecordedEnds | None:
    """Look up the reused rollouts in the logs of the runs that generated them; None if a log cannot be read."""
    try:
        return await recorded_ends(log)
    except SlimeEventsError as error:
        print(f"note: recorded rollouts are not checked: {error}", file=sys.stderr)
        return None


async def _followed(log: Readable) -> Ledger | None:
    """Read the ledger of the run whose rollouts a learner trains on; None for another run, or if that run is gone."""
    branched = None
    with contextlib.suppress(SlimeEventsError):  # damage, and a missing run.started, are in the report
        branched = await branched_of(log)
    if branched is None or not branched.follows:
        return None
    try:
        async with open_run(branched.where) as parent:
            return await read_ledger(parent.run, parent.log.read())
    except SlimeEventsError as error:
        print(f"note: the rollouts of its parent run are not checked: {error}", file=sys.stderr)
        return None


def _verdict(report: Report, seconds: float) -> str:
    foreign = f" and {len(report.foreign):,} foreign records" if report.foreign else ""
    pace = f"{report.events:,} events{foreign} in {seconds:.1f} s"
    if report.clean:
        return f"run {report.run} is clean: {len(report.checks)} checks, {pace}"
    unread = "" if report.unread is None else " and was not read to its end"
    return f"run {report.run} has {len(report.findings)} findings{unread}: {len(report.checks)} checks, {pace}"
