"""`read_prompt_files`: what a run's prompt files hold, in a few bytes, so that another file under a name is noticed.

A run holds a place in its files: a number of rows. Over another file that place means other prompts. The digest is of
the whole file up to `WHOLE` bytes. Of a larger one it is of `BLOCKS` blocks at even distances, the first and the last
among them, with the size: some 64 MB are read of any file, near or far. An edit of a large file that keeps its size and
falls between the blocks is not noticed.
"""

import hashlib
from collections.abc import Mapping

from schemas.errors import DataError, InvalidValue, MissingPart
from schemas.runs import PromptFile
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.prompts.data_file import BLOCK, DataFile, parse_path

BLOCKS = 64
WHOLE = BLOCKS * BLOCK
AT_ONCE = 8
"""Blocks that are in memory at once."""


def read_prompt_files(settings: TrainSettings) -> tuple[PromptFile, ...]:
    """Look at the files that prompts and evaluations are read from, each once. One that cannot be read is left out:
    whoever reads its rows says so.
    """
    found = []
    for path in paths_of(settings):
        try:
            found.append(prompt_file(path))
        except (DataError, MissingPart):
            continue
    return tuple(found)


def paths_of(settings: TrainSettings) -> list[str]:
    """The paths of a run's prompt files, without their slices."""
    data = settings.data
    own = [data.prompt_data] if data.prompt_data and not data.data_source_path else []
    evaluated = [asked.path for asked in settings.evaluation.sets().values()]
    return list(dict.fromkeys(parse_path(path)[0] for path in (*own, *evaluated)))


def prompt_file(path: str) -> PromptFile:
    """Look at one file. Raises DataError, MissingPart."""
    file = DataFile(path)
    size = file.stored_size()
    return PromptFile(path=path, size=size, digest=digest_of(file, size))


def digest_of(file: DataFile, size: int) -> str:
    """The digest of the first `size` bytes of a file."""
    if size <= WHOLE:
        starts = list(range(0, size, BLOCK))
    else:
        starts = [(size - BLOCK) * block // (BLOCKS - 1) for block in range(BLOCKS)]
    sizes = [min(BLOCK, size - start) for start in starts]
    digest = hashlib.sha256(f"{size}:".encode())
    for first in range(0, len(starts), AT_ONCE):
        for block in file.read_stored(starts[first : first + AT_ONCE], sizes[first : first + AT_ONCE]):
            digest.update(block)
    return digest.hexdigest()


def changed_files(before: Mapping[str, PromptFile], settings: TrainSettings) -> list[str]:
    """A sentence for each of the run's files that holds something else than `before`, by path. A file of which nothing
    is known is as it was. Raises DataError for one that is gone.
    """
    said = (_change(before[path], DataFile(path)) for path in paths_of(settings) if path in before)
    return [sentence for sentence in said if sentence]


def _change(before: PromptFile, file: DataFile) -> str:
    size = file.stored_size()
    digest = digest_of(file, size)
    if (size, digest) == (before.size, before.digest):
        return ""
    if size > before.size and digest_of(file, before.size) == before.digest:
        return f"{before.path} has grown from {before.size:,} to {size:,} bytes; what it had is still there"
    return (
        f"{before.path} is another file: it had {before.size:,} bytes (sha256 {before.digest[:12]}), "
        f"and has {size:,} bytes now (sha256 {digest[:12]})"
    )


def check_prompt_files(
    before: Mapping[str, PromptFile], settings: TrainSettings, run: str, *, accept: bool
) -> list[str]:
    """Sentences about files that have changed since `run` read them. Raises InvalidValue unless they are accepted, and
    for one that is gone.
    """
    try:
        changed = changed_files(before, settings)
    except DataError as error:
        raise InvalidValue(f"run {run} has read a prompt file that cannot be read now: {error}") from error
    if changed and not accept:
        listed = "\n  ".join(changed)
        raise InvalidValue(
            f"run {run} has read other prompts than there are now:\n  {listed}\n"
            "A run goes on at a row of its files: other prompts would follow, and its log would name lines that are "
            "gone. Put the files back, or go on with what they hold now: --accept-changed-data"
        )
    return [f"note: {sentence} (--accept-changed-data)" for sentence in changed]
