"""The process that `making_beside` starts: make event tables of the bundles that its input names.

    python -m slime_events.analysis.query.table_maker ARCHIVE FOLDER TABLE ...

Each line of its input has the first and the last segment of a bundle. It prints `ready` before it reads a line. Any
error ends it: the process that started it makes what is missing, and raises what is wrong.
"""

import sys
from pathlib import Path

from slime_events.analysis.query.cache import TableCache
from slime_events.analysis.query.event_tables import EVENT_TABLES
from slime_events.analysis.query.making_beside import READY
from slime_events.core.run.run_reader import open_archive
from storage.payloads import fetch


def main(archive: str, folder: str, *names: str) -> None:
    """Make tables until the input ends. Raises the errors of the archive, and BlobMissing if it lacks payloads."""
    reader, cache, tables = open_archive(archive), TableCache(Path(folder)), [EVENT_TABLES[name] for name in names]

    print(READY, flush=True)
    for line in sys.stdin:
        first, last = map(int, line.split())
        bundle = [segment for segment in reader.segments if first <= segment.segment <= last]
        cache.make(reader, bundle, tables, lambda array: fetch(array, reader.blobs))
        print(READY, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
