"""`CheckpointUpload`: a checkpoint in an object store. Each rank uploads its own files from its own host."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from schemas.errors import CheckpointMismatch, WeightsDamaged
from storage.folders.places import local_copy, parent_of
from storage.folders.remote import RemoteFolders, StoredFile


class CheckpointUpload:
    """A checkpoint that is written to a draft on each host, and then uploaded to `url`, whose name is new.

    The checkpoint exists once `complete` has returned on rank 0.
    """

    def __init__(self, url: str, rank: int) -> None:
        place, self._name = parent_of(url)
        self._folders, self._rank = RemoteFolders(place), rank
        self.draft = self._folders.work / f".{self._name}"
        self.files: dict[str, StoredFile] = {}
        """Files that this rank has uploaded."""

    def upload(self) -> None:
        """Upload the files of this rank, by torch's names. Raises StoreUnavailable."""
        names = [str(path.relative_to(self.draft)) for path in sorted(self.draft.rglob(f"__{self._rank}_*.distcp"))]
        self.files = self._folders.upload(self._name, self.draft, dict(zip(names, names, strict=True)))

    def complete(self, of_ranks: Sequence[Mapping[str, StoredFile]]) -> None:
        """Upload the files that no rank has uploaded, and last the list of all. Raises StoreUnavailable."""
        uploaded = {name: file for files in of_ranks for name, file in files.items()}
        self._folders.publish(self.draft, self._name, uploaded)


@contextmanager
def checkpoint_here(folder: str | Path) -> Iterator[Path]:
    """Yield a checkpoint, by path or URL, on this host. Raises CheckpointMismatch if there is no complete one."""
    with ExitStack() as held:
        try:
            local = held.enter_context(local_copy(folder))
        except WeightsDamaged as error:
            raise CheckpointMismatch(str(error)) from error
        yield local
