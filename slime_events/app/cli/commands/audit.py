"""`slime-events audit`: check a run's whole history. Exit code 0 if it is clean, else 1."""

import argparse
import sys
import time

from msgspec.structs import replace

from slime_events.analysis.audit.read import audit_archive, audit_folder
from slime_events.app.cli.render.audit_text import report_text, verdict_text
from slime_events.app.cli.render.text import json_text
from slime_events.core.run.run_folder import find_run
from slime_events.core.run.run_reader import is_archive
from slime_events.model.json_values import plain


async def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 1 if there is any finding."""
    begun, files = time.perf_counter(), not arguments.no_files
    where = arguments.run if arguments.archive is None else f"{arguments.archive.rstrip('/')}/{arguments.run}"
    if arguments.archive is not None or is_archive(where):
        report = await audit_archive(where, files=files, on_note=_print_note)
    else:
        report = await audit_folder(find_run(arguments.run, arguments.runs_dir), files=files, on_note=_print_note)
    report = replace(report, seconds=time.perf_counter() - begun)
    if arguments.json:
        sys.stdout.write(json_text(plain(report)))
    else:
        print(f"{report_text(report, arguments.most)}\n\n{verdict_text(report)}")
    return 0 if report.clean else 1


def _print_note(sentence: str) -> None:
    print(f"note: {sentence}", file=sys.stderr)
