"""Values of flags that several commands take: the file of `--out`, and the NATS server of `--nats-*`."""

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
    """Return the NATS server of the --nats-* flags, or None. url: used if --nats-url is left out."""
    from storage.jetstream.address import NatsPlace

    where = arguments.nats_url or url
    if not where:
        return None
    files = {name: getattr(arguments, f"nats_{name}") for name in ("creds", "tls_ca", "tls_cert", "tls_key")}
    return NatsPlace(url=where, **files)


@contextlib.contextmanager
def new_file(out: Path) -> Iterator[BinaryIO]:
    """Open the file of `--out` for writing. It gets its name when it is complete; an error inside leaves no file.

    Raises InvalidValue, NoSpace, StoreUnavailable.
    """
    if not out.parent.is_dir():
        raise InvalidValue(f"--out {out}: folder {out.parent} does not exist. Create it first.")
    temp = out.with_name(f".{out.name}.part")
    with file_errors(str(out)):
        try:
            with temp.open("wb") as file:
                yield file
            temp.replace(out)
        finally:
            temp.unlink(missing_ok=True)
