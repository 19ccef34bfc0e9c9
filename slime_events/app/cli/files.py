"""Files of a command: where a run keeps large payloads, its NATS address, and the file of `--out`."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from schemas.errors import InvalidValue
from storage.object_store import file_errors

if TYPE_CHECKING:
    from slime_events.core.run.run_folder import RunFolder


def blob_url(folder: RunFolder) -> str:
    """Where the run keeps large payloads."""
    settings = tomllib.loads(folder.settings.read_text(encoding="utf-8"))
    return str(settings.get("run", {}).get("blob_url") or folder.blobs)


def live_url(folder: RunFolder) -> str | None:
    """The address of the NATS server that the run is on now; None where none of its own lives."""
    from storage.nats.server import NatsServer
    from storage.open_log import URL_FILE

    noted = folder.path / URL_FILE
    if noted.is_file():
        return noted.read_text().strip()
    server = NatsServer.attach(folder.nats)
    return None if server is None or server.record.temporary else server.url


@contextlib.contextmanager
def new_file(out: Path) -> Iterator[BinaryIO]:
    """The file of `--out`, which has its name once it is whole; an error inside leaves nothing.

    Raises InvalidValue, NoSpace, StoreUnavailable.
    """
    if not out.parent.is_dir():
        raise InvalidValue(f"--out {out}: there is no folder {out.parent}")
    temp = out.with_name(f".{out.name}.part")
    with file_errors(str(out)):
        try:
            with temp.open("wb") as file:
                yield file
            temp.replace(out)
        finally:
            temp.unlink(missing_ok=True)
