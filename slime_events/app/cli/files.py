"""The file of `--out`, and the NATS server that a command is told of."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from schemas.errors import InvalidValue
from storage.object_store import file_errors

if TYPE_CHECKING:
    from storage.jetstream.address import NatsPlace


def nats_place(arguments: argparse.Namespace, url: str | None = None) -> NatsPlace | None:
    """The NATS server that a command is told of; None where it is told of none. url: where --nats-url is not given."""
    from storage.jetstream.address import NatsPlace

    where = arguments.nats_url or url
    if not where:
        return None
    files = {name: getattr(arguments, f"nats_{name}") for name in ("creds", "tls_ca", "tls_cert", "tls_key")}
    return NatsPlace(url=where, **files)


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
