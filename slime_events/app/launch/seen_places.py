"""`seen_places`: mark folders and stores, so that other machines can tell whether they see the same ones."""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from slime_events.core.run.shared_places import PlaceKind, SharedPlace, marked
from storage.object_store import ObjectFolder

NAME = ".shared-doctor-{token}"


@contextlib.contextmanager
def seen_places(named: Sequence[tuple[str, str]]) -> Iterator[tuple[SharedPlace, ...]]:
    """Leave a random text in each place while inside. named: flag and URL of each.

    A folder that is made for it is removed again. Raises StorageError for a place that cannot be written from here.
    """
    text, name = secrets.token_hex(16), NAME.format(token=secrets.token_hex(4))
    places = [SharedPlace(flag=flag, url=url, kind=PlaceKind.WRITTEN, name=name) for flag, url in named]
    new = [Path(url) for _, url in named if "://" not in url and not Path(url).exists()]
    with contextlib.ExitStack() as stack:
        for folder in new:
            stack.callback(_remove_empty, folder)
        seen = []
        for place in places:
            seen.append(marked(place, text))
            stack.callback(ObjectFolder(place.url).remove, name)
        yield tuple(seen)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # somebody uses it by now
        folder.rmdir()
