"""Log of each process: standard logging into `<run>/logs/<role>-<pid>.log`."""

import logging
import logging.handlers
import os
import sys
import time
from pathlib import Path

from schemas.redaction import shown
from schemas.text import terminal_text
from slime_events.core.telemetry.current_span import current_span

FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s%(span)s: %(message)s"
LIMIT_BYTES = 64 * 1024 * 1024
KEPT_FILES = 2


def setup_logging(role: str, folder: Path, level: int = logging.INFO) -> Path:
    """Send this process's log records and warnings to a file in `folder`. Returns its path. Times are UTC.

    The file rotates at 64 MB, and two old files are kept. A second call replaces the first file. Other handlers stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{role}-{os.getpid()}.log"
    handler = _ProcessLog(path, maxBytes=LIMIT_BYTES, backupCount=KEPT_FILES, encoding="utf-8")
    formatter = _Redacted(FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    handler.addFilter(_add_span)
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _ProcessLog)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)
    return path


def _add_span(record: logging.LogRecord) -> bool:
    """Add the ids of the current span to a record, by OpenTelemetry's names for logs in other formats."""
    context = current_span()
    record.span = "" if context is None else f" [trace_id={context.trace:032x} span_id={context.span:016x}]"
    return True


class _Redacted(logging.Formatter):
    """Formats a record without secrets and control characters.

    Messages of other packages and tracebacks may contain both, and users read logs on a terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        return terminal_text(shown(super().format(record)))


class _ProcessLog(logging.handlers.RotatingFileHandler):
    """A handler that a second call finds by its type. If the disk is full, lines are lost; the run's end reports it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
