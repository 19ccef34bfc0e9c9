"""Deltas are written from the snapshots of the writing processes, to a folder or an object store, and may be killed."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import storage.object_store
from schemas.errors import WeightsDamaged
from storage.digests import hashing
from storage.folders.cache import FOLDER
from storage.folders.places import is_remote, local_copy
from storage.folders.remote import RemoteFolders
from storage.weights import snapshot as snapshots
from storage.weights.copies import copy_version
from storage.weights.delta_rule import DeltaRule
from storage.weights.delta_version import base_of, delta_bytes
from storage.weights.files import INDEX, is_delta, open_checkpoint
from storage.weights.shards import Shard, TensorBytes
from storage.weights.snapshot import VersionWriter
from storage.weights.store import WeightStore
from storage.weights.stored_version import digest_of, trained_tensors, verify
from storage.weights.whole_copies import WholeCopies, whole_copy
from tests.storage.test_delta_versions import content, filled, tensors

_numbers = itertools.count()
RULE = DeltaRule(full_every=5)


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    return str(tmp_path / "w") if request.param == "folder" else f"memory://deltas-{next(_numbers)}/run"


def base(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    (root / "config.json").write_text("{}")
    return root


def write(store: WeightStore, versions: range) -> list[str]:
    """Write versions; return their digests."""
    return [store.write(version, tensors(version), version - 1 if version else None).digest for version in versions]


@pytest.mark.parametrize("max_shard_bytes", [2**30, 60])
def test_another_host_makes_each_version_again(
    place: str, max_shard_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = filled(tmp_path / "full", None, max_shard_bytes=max_shard_bytes)
    options = {"base": base(tmp_path / "base"), "durable": False, "max_shard_bytes": max_shard_bytes}
    store = WeightStore(place, deltas=RULE, **options)
    digests = write(store, range(8))
    monkeypatch.setenv(FOLDER, str(tmp_path / "other-cache"))
    there = WeightStore(place)
    for version in (6, 0, 1, 2, 3, 4, 5, 7):
        url, other = there.folder(version, digests[version]), full.folder(version)
        assert (base_of(url) is not None) == (delta_bytes(url) is not None) == (version % 5 != 0)
        assert there.is_whole(version, digests[version])
        assert verify(url, digests[version]) == verify(other)
        assert {name: bytes(each.data) for name, each in trained_tensors(url).items()} == {
            name: bytes(each.data) for name, each in open_checkpoint(other).items()
        }
        for copies in (None, tmp_path / "chosen"):
            with WholeCopies(copies).hold(url, digests[version]) as whole:
                assert content(whole) == content(other)
        copy_version(url, str(tmp_path / "out"))
        assert content(tmp_path / "out") == content(other)
        if is_remote(place) and version % 5:
            with local_copy(url) as stored:
                names = {path.name for path in stored.iterdir()}
            assert {name for name in names if not name.startswith("delta-")} == {"manifest.json", INDEX}


def test_a_writer_that_starts_again_continues_with_deltas(place: str, tmp_path: Path) -> None:
    options = {"base": base(tmp_path / "base"), "durable": False, "deltas": RULE}
    first = write(WeightStore(place, **options), range(3))
    second = write(WeightStore(place, **options), range(3, 5))
    store = WeightStore(place)
    for version, digest in enumerate(first + second):
        assert digest == digest_of(tensors(version))
        assert (base_of(store.folder(version)) is not None) == (version > 0)
        verify(store.folder(version), digest)


def test_what_a_kept_delta_needs_is_not_removed(place: str, tmp_path: Path) -> None:
    store = WeightStore(place, base=base(tmp_path / "base"), durable=False, deltas=RULE)
    write(store, range(8))
    store.remove([0, 1, 2, 3, 4, 6])
    assert store.versions() == [5, 6, 7]
    write(store, range(8, 9))
    store.remove([0, 5, 6, 7, 8])
    assert store.versions() == []


def test_a_version_of_the_chain_that_is_gone(place: str, tmp_path: Path) -> None:
    store = WeightStore(place, base=base(tmp_path / "base"), durable=False, deltas=RULE)
    *_, digest = write(store, range(4))
    gone = store.folder(1)
    if is_remote(place):
        RemoteFolders(place).remove([gone.rpartition("/")[2]])
    else:
        shutil.rmtree(gone)
        with pytest.raises(WeightsDamaged, match="missing"):
            WeightStore(place).is_whole(3, digest)
    if is_remote(place):
        assert not WeightStore(place).is_whole(3, digest)
    assert write(store, range(4, 5)) == [digest_of(tensors(4))]
    assert base_of(store.folder(4)) is None, "a delta of it would be of no use"


def test_a_damaged_download_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    url = f"memory://deltas-{next(_numbers)}/run"
    store = WeightStore(url, base=base(tmp_path / "base"), deltas=RULE)
    digests = write(store, range(4))
    for version, use in ((1, verify), (2, lambda folder, digest: content_of(folder))):
        with local_copy(store.folder(version)) as stored:
            (delta,) = stored.glob("delta-*")
            delta.write_bytes(delta.read_bytes()[:-1] + b"?")
        use(store.folder(3), digests[3])
        assert verify(store.folder(3), digests[3])


def content_of(url: str) -> dict[str, bytes]:
    with whole_copy(url) as whole:
        return content(whole)


class Processes:
    """Writers of one version, each in a thread, that meet as ranks do."""

    def __init__(self, count: int) -> None:
        self._barrier, self._parts = threading.Barrier(count, timeout=20), [list[Any]() for _ in range(count)]
        self.calls = 0
        self.writers = [VersionWriter(f"rank{rank}", self._gatherer(rank)) for rank in range(count)]

    def _gatherer(self, rank: int) -> Callable[[list[Shard] | None], list[list[Shard] | None]]:
        def gather(mine: list[Shard] | None) -> list[list[Shard] | None]:
            self._parts[rank].append(mine)
            self._barrier.wait()
            every = [parts[-1] for parts in self._parts]
            self._barrier.wait()
            self.calls += rank == 0
            return every

        return gather

    def write(self, store: WeightStore, version: int) -> bool:
        """Write a version, whose tensors the processes share; return whether it is a delta."""
        plan, parts = store.plan(version, version - 1 if version else None), tensors(version)
        with store.draft(version) as draft, ThreadPoolExecutor(len(self.writers)) as pool:

            def mine(rank: int) -> list[Shard]:
                def share() -> Iterator[TensorBytes]:
                    return iter(parts[rank :: len(self.writers)])

                return self.writers[rank].write(draft, share, max_bytes=2**30, durable=False, deltas=plan)

            every = list(pool.map(mine, range(len(self.writers))))
            assert all(shards == every[0] for shards in every)
            manifest = store.complete(draft, version, every[0], version - 1 if version else None, plan=plan)
        assert manifest.digest == digest_of(parts)
        verify(store.folder(version), manifest.digest)
        return is_delta(Path(store.folder(version)))


def test_processes_write_their_shares(tmp_path: Path) -> None:
    store, processes = WeightStore(str(tmp_path / "w"), durable=False, deltas=RULE), Processes(3)
    # In versions 2 and 3 a tensor more and one less move others to another process, which has not their old bytes.
    assert [processes.write(store, version) for version in range(8)] == [
        False,
        True,
        False,
        False,
        True,
        False,
        *2 * [True],
    ]
    assert processes.calls == 10, "one exchange for each version, and another for those two"


def test_all_write_in_full_if_the_parent_is_damaged_for_one(tmp_path: Path) -> None:
    store, processes = WeightStore(str(tmp_path / "w"), durable=False, deltas=DeltaRule(50)), Processes(2)
    assert [processes.write(store, version) for version in range(4, 7)] == [False, True, True]
    processes.writers[1]._snapshot = snapshots.Snapshot()
    assert processes.write(store, 7), "it reads its part of the parent's files"
    for path in Path(store.folder(5)).glob("delta-*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    processes.writers[1]._snapshot = snapshots.Snapshot()
    assert not processes.write(store, 8)
    assert processes.write(store, 9)
    assert processes.calls == 7, "version 8 took two"


STEPS = 3
CALLS: list[tuple[Any, str]] = [
    (os, "writev"), (os, "link"), (os, "replace"), (os, "rename"), (os, "mkdir"), (os, "fsync"), (Path, "write_bytes"),
    (Path, "rename"), (Path, "touch"), (Path, "mkdir"), (storage.object_store.ObjectFolder, "upload"),
    (storage.object_store.ObjectFolder, "replace"),
]  # fmt: skip


def _killed_at(calls: int, place: str, kept: Path) -> bool:
    """Write the rest of a run's versions in a process that is killed before the nth write; return whether it was."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    try:
        hashing.cache_clear()  # its threads are not in this process
        left = itertools.count(calls, -1)
        for owner, name in CALLS:
            setattr(owner, name, _counted(getattr(owner, name), left))
        store = WeightStore(place, base=kept, deltas=DeltaRule(full_every=3))
        write(store, range(max(store.versions(), default=-1) + 1, STEPS))
    finally:
        os._exit(0)


def _counted(call: Callable[..., Any], left: Iterator[int]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)

    return counted


@pytest.mark.parametrize("scheme", ["", "local://"])
def test_a_kill_between_any_two_writes(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, kills = base(tmp_path / "base"), 0
    for calls in itertools.count():
        monkeypatch.setenv(FOLDER, str(tmp_path / f"cache{calls}"))
        place = f"{scheme}{tmp_path / f'w{calls}'}"
        if not _killed_at(calls, place, kept):
            break
        kills += 1
        store = WeightStore(place)
        there = store.versions()
        assert there == list(range(len(there)))
        for version in there:
            verify(store.folder(version), digest_of(tensors(version)))
        assert not _killed_at(10**9, place, kept)
        store = WeightStore(place)
        assert store.versions() == list(range(STEPS))
        for version in range(STEPS):
            verify(store.folder(version), digest_of(tensors(version)))
            assert (base_of(store.folder(version)) is not None) == (version % 3 != 0)
    assert kills > 20
