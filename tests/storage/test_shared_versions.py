"""Weight versions in a process's memory: handed over whole, never changed, and gone with the process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.errors import WeightsDamaged
from schemas.weights import WeightsCarrier
from storage.own_socket import address
from storage.weights import handover, shared_versions
from storage.weights.handover import FILES_AT_ONCE, Handover, close_all, take
from storage.weights.sealed_files import copy_sealed, is_sealed
from storage.weights.shared_versions import SharedVersions, handover_name
from storage.weights.store import WeightStore

FILES, MEMORY = WeightsCarrier.FILES, WeightsCarrier.SHARED_MEMORY


@pytest.fixture
def name(tmp_path: Path) -> str:
    return f"test-{tmp_path}"[-80:]


def sealed(folder: Path, count: int) -> dict[str, int]:
    files = {}
    for number in range(count):
        (path := folder / f"{number}").write_bytes(bytes([number % 256]) * (number * 1000 + 1))
        files[path.name] = copy_sealed(path)
    return files


def content(files: dict[str, int]) -> dict[str, bytes]:
    return {name: os.pread(descriptor, 10**7, 0) for name, descriptor in files.items()}


def test_a_sealed_copy_cannot_be_changed(tmp_path: Path) -> None:
    (path := tmp_path / "file").write_bytes(b"weights" * 100_000)
    copy = copy_sealed(path)
    path.write_bytes(b"other")
    assert os.pread(copy, 10**7, 0) == b"weights" * 100_000
    for change in (lambda: os.pwrite(copy, b"x", 0), lambda: os.ftruncate(copy, 3), lambda: os.ftruncate(copy, 10**7)):
        with pytest.raises(OSError, match="not permitted"):
            change()
    assert is_sealed(copy)
    os.close(copy)


def test_more_files_than_one_message_has_are_handed_over(tmp_path: Path, name: str) -> None:
    files = sealed(tmp_path, 2 * FILES_AT_ONCE + 3)
    expected, offer = content(files), Handover(name, files)
    for _ in range(2):
        taken = take(name)
        assert taken is not None
        assert content(taken) == expected
        close_all(taken.values())
    offer.close()
    assert take(name) is None


def test_a_taker_keeps_the_files_of_a_closed_handover(tmp_path: Path, name: str) -> None:
    offer = Handover(name, files := sealed(tmp_path, 3))
    expected, taken = content(files), take(name)
    offer.close()
    assert taken is not None
    assert content(taken) == expected
    close_all(taken.values())


def test_files_that_can_change_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    before = len(os.listdir("/proc/self/fd"))
    offer = Handover(name, {"file": os.open(tmp_path / "file", os.O_RDWR)})
    with pytest.raises(WeightsDamaged, match="unsealed"):
        take(name)
    offer.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("names", [["../a"], ["a/b"], [""]])
def test_only_plain_names_are_taken(tmp_path: Path, name: str, names: list[str]) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    offer = Handover(name, {each: copy_sealed(tmp_path / "file") for each in names})
    with pytest.raises(WeightsDamaged):
        take(name)
    offer.close()


def test_a_process_that_does_not_answer_or_is_of_another_user_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "ANSWER_S", 0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(address(name))
        silent.listen()
        with pytest.raises(WeightsDamaged, match="timed out"):
            take(name)
        monkeypatch.setattr(handover, "is_ours", lambda peer: False)
        with pytest.raises(WeightsDamaged, match="another user"):
            take(name)


def stored(root: Path, run: str, versions: int = 1, due: int = 1) -> tuple[WeightStore, SharedVersions, list[str]]:
    """A store with versions 0 to `versions` - 1, which are offered besides if they are multiples of `due`."""
    offering = SharedVersions(run, lambda version: version % due == 0)
    store, digests = WeightStore(str(root / "w"), durable=False, offering=offering), []
    for version in range(versions):
        tensors = [("w", "F32", (500,), bytes([version]) * 2000), ("v", "F32", (1,), bytes(4))]
        digests.append(store.write(version, tensors, version - 1 if version else None).digest)
    return store, offering, digests


@pytest.fixture
def run(name: str) -> str:
    return name


def test_a_store_offers_the_versions_that_engines_load(tmp_path: Path, run: str) -> None:
    store, _, digests = stored(tmp_path, run, versions=5, due=2)
    assert [store.carrier(version, digest) for version, digest in enumerate(digests)] == [
        MEMORY, FILES, MEMORY, FILES, MEMORY,
    ]  # fmt: skip
    assert store.carrier(4, digests[2]) is FILES
    taken = take(handover_name(run, 4, digests[4]))
    assert taken is not None
    assert content(taken) == {path.name: path.read_bytes() for path in Path(store.folder(4)).iterdir()}
    close_all(taken.values())
    store.retire(4)
    assert [take(handover_name(run, version, digests[version])) for version in (0, 2)] == [None, None]
    store.retire()
    assert take(handover_name(run, 4, digests[4])) is None
    assert store.versions() == list(range(5))


def test_a_version_that_takes_half_of_the_memory_is_stored_only(
    tmp_path: Path, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_versions, "available_memory", lambda: 2 * 2004 - 1)
    store, _, (digest,) = stored(tmp_path, run)
    assert store.carrier(0, digest) is FILES
    assert store.is_whole(0, digest)


def test_a_version_whose_files_are_on_several_hosts_is_stored_only(tmp_path: Path, run: str) -> None:
    store, offering, _ = stored(tmp_path, run)
    manifest = store.write(1, [("w", "F32", (1,), bytes(4))], 0)
    offering.retire(None)
    before = len(os.listdir("/proc/self/fd"))
    offering.offer(tmp_path, manifest)
    assert offering.carrier(1, manifest.digest) is FILES
    assert len(os.listdir("/proc/self/fd")) == before


_MAKER = """
import sys, time
from pathlib import Path
from tests.storage.test_shared_versions import stored
_, _, digests = stored(Path(sys.argv[1]), sys.argv[2])
print(digests[0], flush=True)
time.sleep(60)
"""


@pytest.fixture
def maker(tmp_path: Path, run: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that offers version 0, and its digest."""
    with subprocess.Popen(
        [sys.executable, "-c", _MAKER, str(tmp_path), run], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def test_nothing_is_left_of_a_killed_maker(maker: tuple[subprocess.Popen[str], str], run: str) -> None:
    process, digest = maker
    before, expected = set(os.listdir("/dev/shm")), take(handover_name(run, 0, digest))
    assert expected is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert take(handover_name(run, 0, digest)) is None
    assert set(os.listdir("/dev/shm")) <= before
    assert len(content(expected)["model.safetensors"]) > 2000, "a taker keeps what it has"
    close_all(expected.values())


def test_a_name_in_use_is_left_to_its_owner(maker: tuple[subprocess.Popen[str], str], tmp_path: Path, run: str) -> None:
    """A trainer that was replaced and does not know it has offered the same version."""
    _, digest = maker
    store, _, digests = stored(tmp_path / "other", run)
    assert digests == [digest]
    assert store.carrier(0, digest) is FILES
    taken = take(handover_name(run, 0, digest))
    assert taken is not None
    close_all(taken.values())
