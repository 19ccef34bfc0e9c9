"""`copy_version`: a stored weight version as a Hugging Face folder of somebody's own."""

import os
import shutil
from pathlib import Path

from storage.object_store import file_errors


def copy_version(stored: str, target: str) -> None:
    """Copy the folder of a version; tensors are hard links where the file system has them, so they take no space while
    the version is there. The folder is complete or not there; an older one of that name is replaced.

    Raises NoSpace, StoreUnavailable.
    """
    place = Path(target).absolute()
    partial, before = (place.with_name(f".{place.name}.{kind}") for kind in ("partial", "before"))
    with file_errors(str(place)):
        for left in (partial, before):
            shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(stored, partial, copy_function=_link_or_copy)
        if place.exists():
            place.rename(before)
        partial.rename(place)
        shutil.rmtree(before, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    """Only of what nobody edits: config and tokenizer files are for their owner to change."""
    if source.endswith(".safetensors"):
        try:
            os.link(source, target)
            return
        except OSError:  # another file system, or one without links
            pass
    shutil.copy2(source, target)
