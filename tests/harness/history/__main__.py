"""`python -m tests.harness.history RUN_FOLDER | RECORDS.jsonl`: check a run's log; exit 0 where nothing was found.

RECORDS.jsonl holds one object per line: position, subject and data (base64).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from storage.log import ForeignRecord
from storage.open_log import open_run_log
from tests.harness.history.checker import check
from tests.harness.history.record import Blob, Raw


def main(argv: Sequence[str] | None = None) -> int:
    """Print each finding on a line, and the count."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.history", description=__doc__)
    parser.add_argument("path", type=Path, help="a run's folder, or its records as JSON lines")
    parser.add_argument("--bound", type=int, help="weight versions a sample may be behind [the run's settings]")
    arguments = parser.parse_args(argv)
    if arguments.path.is_dir():
        (records, foreign), blob = asyncio.run(_records_of_run(arguments.path)), _blobs(arguments.path / "blobs")
    else:
        records, foreign, blob = _records_of_file(arguments.path), [], None
    findings = check(records, foreign=set(foreign), bound=arguments.bound, blob=blob)
    for finding in findings:
        print(finding)
    print(f"{len(records)} records, {len(foreign)} more are foreign, {len(findings)} findings")
    return 1 if findings else 0


async def _records_of_run(folder: Path) -> tuple[list[Raw], list[int]]:
    """The events, and the positions of foreign records."""
    records: list[Raw] = []
    foreign: list[int] = []
    async with open_run_log(folder) as log:
        async for record in log.read_records():
            if isinstance(record, ForeignRecord):
                foreign.append(record.position)
            else:
                records.append((record.position, record.subject, record.data))
    return records, foreign


def _records_of_file(path: Path) -> list[Raw]:
    lines = map(json.loads, path.read_text().splitlines())
    return [(line["position"], line["subject"], base64.b64decode(line["data"])) for line in lines]


def _blobs(folder: Path) -> Blob:
    return lambda digest: (folder / digest[:2] / digest[2:]).read_bytes()


if __name__ == "__main__":
    sys.exit(main())
