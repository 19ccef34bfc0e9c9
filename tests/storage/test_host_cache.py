"""The cache of a host: one download for all its processes, bounded, and never a part of a folder."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from schemas.errors import InvalidValue, NoSpace, StoreUnavailable
from storage.folders.cache import FOLDER, GB, HostCache
from tests.storage.waiting import until

URL = "s3://bucket/run/v000001-abc"
SIZE = 1000


def filled(count: list[int] | None = None) -> Callable[[Path], None]:
    def fetch(folder: Path) -> None:
        if count is not None:
            count.append(os.getpid())
        (folder / "file").write_bytes(b"x" * SIZE)

    return fetch


def forked(work: Callable[[], object]) -> int:
    """The id of a child process that does this and ends."""
    if child := os.fork():
        return child
    try:
        work()
    finally:
        os._exit(0)


@pytest.fixture
def cache(tmp_path: Path) -> HostCache:
    return HostCache(tmp_path / "cache", limit=3 * SIZE)


def test_it_downloads_once(cache: HostCache) -> None:
    count = list[int]()
    for _ in range(3):
        with cache.copy(URL, SIZE, filled(count)) as folder:
            assert (folder / "file").read_bytes() == b"x" * SIZE
    assert len(count) == 1
    with cache.copy("s3://other/run/v000001-abc", SIZE, filled(count)):
        assert len(count) == 2, "the same name at another place is another folder"


def test_processes_and_threads_share_a_download(cache: HostCache, tmp_path: Path) -> None:
    def slow(folder: Path) -> None:
        (tmp_path / f"fetched-{os.getpid()}-{threading.get_ident()}").touch()
        time.sleep(0.3)
        filled()(folder)

    def use() -> None:
        with cache.copy(URL, SIZE, slow) as folder:
            assert (folder / "file").stat().st_size == SIZE
            (tmp_path / f"used-{secrets.token_hex(8)}").touch()  # a later thread may get the number of an ended one

    children = [forked(use) for _ in range(3)]
    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for child in children:
        os.waitpid(child, 0)
    assert len(list(tmp_path.glob("fetched-*"))) == 1
    assert len(list(tmp_path.glob("used-*"))) == 5


async def test_a_killed_download_leaves_nothing_that_is_used(cache: HostCache, tmp_path: Path) -> None:
    def endless(folder: Path) -> None:
        (folder / "part").write_bytes(b"half")
        (tmp_path / "begun").touch()
        time.sleep(60)

    def use() -> None:
        with cache.copy(URL, SIZE, endless):
            pass

    child = forked(use)
    await until((tmp_path / "begun").exists)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)  # noqa: ASYNC222
    with cache.copy(URL, SIZE, filled()) as folder:
        assert [path.name for path in folder.iterdir()] == ["file"]
    assert [path.name for path in cache.root.iterdir() if path.name.startswith(".partial")] == []


def test_a_failed_download_leaves_nothing(cache: HostCache) -> None:
    def fails(folder: Path) -> None:
        filled()(folder)
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable), cache.copy(URL, SIZE, fails):
        pass
    assert copies(cache) == []


def test_the_least_recently_used_copy_goes(cache: HostCache) -> None:
    urls = [f"{URL}{number}" for number in range(4)]
    for number, url in enumerate(urls[:3]):
        with cache.copy(url, SIZE, filled()) as folder:
            os.utime(folder, (number, number))
    with cache.copy(urls[0], SIZE, filled()):
        pass
    with cache.copy(urls[3], SIZE, filled()):
        assert copies(cache) == ["v000001-abc0", "v000001-abc2", "v000001-abc3"]


def test_a_copy_in_use_stays(cache: HostCache) -> None:
    urls = [f"{URL}{number}" for number in range(4)]
    with cache.copy(urls[0], SIZE, filled()) as first, cache.copy(urls[1], 2 * SIZE, filled()):
        with pytest.raises(NoSpace) as error, cache.copy(urls[2], 2 * SIZE, filled()):
            pass
        assert "3,000" in str(error.value)
        assert (first / "file").exists()
    with cache.copy(urls[3], 3 * SIZE, filled()):
        assert copies(cache) == ["v000001-abc3"]


def test_a_damaged_copy_is_dropped_while_it_is_read(cache: HostCache) -> None:
    count = list[int]()
    with cache.copy(URL, SIZE, filled(count)) as folder, (folder / "file").open("rb") as file:
        cache.drop(URL)
        cache.drop(URL)
        assert len(file.read()) == SIZE
        with cache.copy(f"{URL}2", SIZE, filled()):
            pass
    with cache.copy(URL, SIZE, filled(count)):
        assert len(count) == 2


def test_it_adopts_a_draft(cache: HostCache) -> None:
    for name, adopted in (("one", True), ("two", False)):
        draft = cache.work("s3://bucket/run") / f".{name}"
        draft.mkdir(parents=True)
        filled()(draft)
        assert cache.adopt(URL, draft, SIZE) is adopted
        assert draft.exists() is not adopted
    with cache.copy(URL, SIZE, pytest.fail) as folder:
        assert (folder / "file").exists()


def test_its_place_is_in_the_environment(tmp_path: Path) -> None:
    cache = HostCache.of_environment({FOLDER: str(tmp_path), GB: "0.000001"})
    assert cache.root == tmp_path
    with pytest.raises(NoSpace), cache.copy(URL, 1001, filled()):
        pass
    with pytest.raises(InvalidValue):
        HostCache.of_environment({GB: "much"})


def copies(cache: HostCache) -> list[str]:
    return sorted(_copies(cache))


def _copies(cache: HostCache) -> Iterator[str]:
    for path in cache.root.iterdir():
        if not path.name.startswith("."):
            yield path.name.rpartition("-")[0]
