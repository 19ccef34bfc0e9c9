"""`new_file`: the file of `--out`, which bears its name once all of it is there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from schemas.errors import InvalidValue
from storage.object_store import file_errors


@contextlib.contextmanager
def new_file(out: Path) -> Iterator[BinaryIO]:
    """To write to; what goes wrong inside leaves nothing behind. Raises InvalidValue, NoSpace, StoreUnavailable."""
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
