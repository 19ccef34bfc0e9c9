"""`copy_version`: copy a stored weight version to the user's own Hugging Face folder."""

import os
import shutil
from pathlib import Path

from storage.object_store import file_errors
from storage.weights.whole_copies import whole_copy


def copy_version(stored: str, target: str) -> None:
    """Copy a version, by path or URL, as a whole folder, atomically, and replace an older folder of that name.

    Tensors are hard links if the file system supports them, so they take no space while the version exists. Raises
    NoSpace, StoreUnavailable.
    """
    place = Path(target).absolute()
    partial, before = (place.with_name(f".{place.name}.{kind}") for kind in ("partial", "before"))
    with file_errors(str(place)):
        for left in (partial, before):
            shutil.rmtree(left, ignore_errors=True)
        with whole_copy(stored) as folder:
            shutil.copytree(folder, partial, copy_function=_link_or_copy)
        if place.exists():
            place.rename(before)
        partial.rename(place)
        shutil.rmtree(before, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    """Link a file that nobody edits, and copy the others: the user may edit config and tokenizer files."""
    if source.endswith(".safetensors"):
        try:
            os.link(source, target)
            return
        except OSError:  # another file system, or one without links
            pass
    shutil.copy2(source, target)
