"""`python -m deploy.check`: exit code 0 if nothing failed. Prints skipped checks with their reasons."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from deploy.check.files import check_files
from deploy.check.live import check_services
from deploy.check.report import Report


def main(argv: Sequence[str] | None = None) -> int:
    """Check files, then services; return 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m deploy.check", description=__doc__)
    parser.add_argument("--files", action="store_true", help="check only the files, which takes seconds")
    parser.add_argument("--steps", type=int, default=8, help="training steps of the run [8]")
    arguments = parser.parse_args(argv)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # hides errors of TLS connections to a killed server
    report = Report()
    check_files(report)
    if not arguments.files:
        with tempfile.TemporaryDirectory(prefix="se-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            check_services(report, Path(folder), arguments.steps)
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return int(report.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
