"""`making_beside`: make event tables of an archive in a second process, on another core."""

import contextlib
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from slime_events.analysis.query.event_tables import EventTable
from slime_events.core.run.own_python import own_command, own_path
from storage.archive.manifest import SegmentManifest
from storage.archive.reader import ArchiveReader

BESIDE_BYTES = 192 * 1024 * 1024
"""Uncompressed records from which a second process is worth its start of a second."""
READY = "ready"
"""The line with which the second process asks for the next bundle."""
MODULE = "slime_events.analysis.query.table_maker"
_WAIT_S = 5.0
"""Least time to wait for its last bundle."""

Bundles = deque[list[SegmentManifest]]


def next_of(left: Bundles) -> list[SegmentManifest]:
    """Remove and return the first bundle; empty if none is left, also if another thread took it just now."""
    try:
        return left.popleft()
    except IndexError:
        return []


@contextlib.contextmanager
def making_beside(reader: ArchiveReader, folder: Path, tables: Sequence[EventTable], left: Bundles) -> Iterator[None]:
    """Meanwhile, a second process takes bundles from the end of `left`, and makes their files of `tables` in `folder`.

    At the end it is waited for. If it fails, or takes much longer than this process, files that it took are missing.
    Nothing is started for small bundles or on one core.
    """
    records = sum(segment.raw_bytes for bundle in left for segment in bundle)
    process = None
    if records >= BESIDE_BYTES and len(os.sched_getaffinity(0)) > 1:
        process = _started(own_command(MODULE, reader.url, str(folder), *(table.name for table in tables)))
    if process is None:
        yield
        return
    begun, handed = time.monotonic(), Bundles()
    thread = threading.Thread(target=_hand_out, args=(process, left, handed), name="slime-events-beside", daemon=True)
    thread.start()
    try:
        yield
        if handed:
            thread.join(max(_WAIT_S, time.monotonic() - begun))
    finally:
        process.kill()
        thread.join()
        with contextlib.suppress(BrokenPipeError):
            process.communicate()


def _started(command: list[str]) -> subprocess.Popen[str] | None:
    """Return the process; None if the system starts no more."""
    pipe, env = subprocess.PIPE, {**os.environ, **own_path()}
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env)
    except OSError:
        return None


def _hand_out(process: subprocess.Popen[str], left: Bundles, handed: Bundles) -> None:
    """Give the second process a bundle whenever it is ready, until none is left or it has ended. `handed` has the
    bundle that it makes.
    """
    assert process.stdin
    assert process.stdout
    with contextlib.suppress(IndexError, OSError):
        while process.stdout.readline().strip() == READY:
            handed.clear()
            bundle = left.pop()
            handed.append(bundle)
            process.stdin.write(f"{bundle[0].segment} {bundle[-1].segment}\n")
            process.stdin.flush()
