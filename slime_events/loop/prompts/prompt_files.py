"""`read_prompt_files`: digests of a run's prompt files, to notice that a file of the same name has changed.

A run has a position in its files: a number of rows. In a different file that position means different prompts. The
digest covers the whole file up to `WHOLE` bytes. Of a larger file it covers the size and `BLOCKS` blocks at equal
distances, including the first and the last: at most 64 MB are read of any file, local or remote. An edit of a large
file that keeps its size and lies between the blocks is not noticed.
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
"""Blocks that are in memory at the same time."""


def read_prompt_files(settings: TrainSettings) -> tuple[PromptFile, ...]:
    """Return the digests of the files of prompts and evaluations. Files that cannot be read are left out: reading their
    rows reports the error.
    """
    files = []
    for path in paths_of(settings):
        try:
            files.append(prompt_file(path))
        except (DataError, MissingPart):
            continue
    return tuple(files)


def paths_of(settings: TrainSettings) -> list[str]:
    """Return the paths of a run's prompt files, without their slices."""
    data = settings.data
    own = [data.prompt_data] if data.prompt_data and not data.data_source_path else []
    evaluated = [dataset.path for dataset in settings.evaluation.sets().values()]
    return list(dict.fromkeys(parse_path(path)[0] for path in (*own, *evaluated)))


def prompt_file(path: str) -> PromptFile:
    """Return the digest of a file. Raises DataError, MissingPart."""
    file = DataFile(path)
    size = file.stored_size()
    return PromptFile(path=path, size=size, digest=digest_of(file, size))


def digest_of(file: DataFile, size: int) -> str:
    """Return the digest of the first `size` bytes of a file."""
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
    """Return a sentence for each of the run's files that differs from `before`. Raises DataError for a missing file.

    before: by path; files without an entry count as unchanged.
    """
    sentences = (_change(before[path], DataFile(path)) for path in paths_of(settings) if path in before)
    return [sentence for sentence in sentences if sentence]


def _change(before: PromptFile, file: DataFile) -> str:
    size = file.stored_size()
    digest = digest_of(file, size)
    if (size, digest) == (before.size, before.digest):
        return ""
    if size > before.size and digest_of(file, before.size) == before.digest:
        return f"{before.path} has grown from {before.size:,} to {size:,} bytes; its earlier content is unchanged"
    return (
        f"{before.path} is a different file: it had {before.size:,} bytes (sha256 {before.digest[:12]}), "
        f"and now has {size:,} bytes (sha256 {digest[:12]})"
    )


def check_prompt_files(
    before: Mapping[str, PromptFile], settings: TrainSettings, run: str, *, accept: bool
) -> list[str]:
    """Return sentences about files that have changed since `run` read them.

    Raises InvalidValue unless changes are accepted, and for a missing file.
    """
    try:
        changed = changed_files(before, settings)
    except DataError as error:
        raise InvalidValue(f"run {run} has read a prompt file that cannot be read now: {error}") from error
    if changed and not accept:
        listed = "\n  ".join(changed)
        raise InvalidValue(
            f"the prompt files of run {run} have changed:\n  {listed}\n"
            "A run resumes at a row of its files: different prompts would follow, and its log would name "
            "lines that are "
            "gone. Restore the files, or continue with their new content: --accept-changed-data"
        )
    return [f"note: {sentence} (--accept-changed-data)" for sentence in changed]
