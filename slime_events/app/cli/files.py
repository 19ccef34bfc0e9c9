"""Files of a command: where a run keeps large payloads, the file of `--out`; and the NATS server it is told of."""

from __future__ import annotations

import argparse
import contextlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from schemas.errors import InvalidValue
from storage.object_store import file_errors

if TYPE_CHECKING:
    from slime_events.core.run.run_folder import RunFolder
    from storage.jetstream.address import NatsPlace


def nats_place(arguments: argparse.Namespace, url: str | None = None) -> NatsPlace | None:
    """The NATS server that a command is told of; None where it is told of none. url: where --nats-url is not given."""
    from storage.jetstream.address import NatsPlace

    where = arguments.nats_url or url
    if not where:
        return None
    files = {name: getattr(arguments, f"nats_{name}") for name in ("creds", "tls_ca", "tls_cert", "tls_key")}
    return NatsPlace(url=where, **files)


def blob_url(folder: RunFolder) -> str:
    """Where the run keeps large payloads."""
    settings = tomllib.loads(folder.settings.read_text(encoding="utf-8"))
    return str(settings.get("run", {}).get("blob_url") or folder.blobs)


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
