"""Blobs and offloaded arrays, the same tests on files, memory and S3."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from schemas.arrays import INLINE_LIMIT, Array, BlobRef, pack_tokens
from schemas.envelope import Envelope
from schemas.errors import BlobDamaged, BlobMissing, DamagedEvent, NoSpace, StoreUnavailable
from schemas.rollouts import RolloutProgressed, WeightSpan
from storage.blobs import BlobStore
from storage.object_store import ObjectFolder
from storage.payloads import blob_refs, fetch, needs_offload, offload, offload_async
from tests import made
from tests.schemas.strategies import envelopes
from tests.storage.stores import StoreUrl


def chunk(tokens: Array) -> RolloutProgressed:
    return made.progressed("s", tokens, log_probs=[0.5], spans=(WeightSpan(0, 1, 0),))


def test_what_was_put_is_read_back_once_stored(store: StoreUrl) -> None:
    blobs = BlobStore(store.url, store.options)
    ref = blobs.put(b"payload")
    assert blobs.put(b"payload") == ref
    assert blobs.get(ref) == b"payload"
    assert blobs.has(ref)
    objects = ObjectFolder(store.url, store.options)
    assert objects.names(ref.sha256[:2]) == [f"{ref.sha256[:2]}/{ref.sha256[2:]}"]


def test_missing_and_damaged_are_named(store: StoreUrl) -> None:
    blobs = BlobStore(store.url, store.options)
    with pytest.raises(BlobMissing, match="ab/cd"):
        blobs.get(BlobRef(sha256="abcd" * 16, size=3))
    ref = blobs.put(b"payload")
    with pytest.raises(BlobDamaged):
        blobs.get(BlobRef(sha256=ref.sha256, size=ref.size + 1))
    ObjectFolder(store.url, store.options).replace(f"{ref.sha256[:2]}/{ref.sha256[2:]}", b"pAyload")
    with pytest.raises(BlobDamaged, match=ref.sha256[2:]):
        blobs.get(ref)


def test_create_once_replace_and_list(store: StoreUrl) -> None:
    objects = ObjectFolder(store.url, store.options)
    assert objects.names("f") == []
    assert objects.create("f/b", b"1")
    assert not objects.create("f/b", b"2")
    objects.replace("f/a", b"3")
    objects.replace("f/a", b"4")
    assert [objects.read(name) for name in objects.names("f")] == [b"4", b"1"]
    with pytest.raises(FileNotFoundError):
        objects.read("f/c")


@pytest.mark.parametrize("size", [0, 1, INLINE_LIMIT // 4, INLINE_LIMIT // 4 + 1])
def test_only_arrays_above_the_limit_are_offloaded(tmp_path: Path, size: int) -> None:
    blobs = BlobStore(str(tmp_path))
    values = np.arange(size, dtype=np.int32)
    event = chunk(pack_tokens(values))
    kept = offload(event, blobs)
    assert needs_offload(event) == (size * 4 > INLINE_LIMIT)
    assert (kept is event) == (size * 4 <= INLINE_LIMIT)
    assert (kept.tokens.blob is not None) == (size * 4 > INLINE_LIMIT)
    np.testing.assert_array_equal(fetch(kept.tokens, blobs), values)
    assert kept.log_probs == event.log_probs


class _Anywhere:
    """A store that takes everything and keeps nothing."""

    def put(self, data: bytes) -> BlobRef:
        return BlobRef("0" * 64, len(data))


@settings(max_examples=300)
@given(envelopes())
def test_what_needs_to_be_offloaded_is_what_offloading_changes(envelope: Envelope) -> None:
    event = envelope.event
    changed = offload(event, _Anywhere(), limit=0)  # type: ignore[arg-type]
    assert needs_offload(event, limit=0) == (changed is not event)


async def test_offload_off_the_event_loop(tmp_path: Path) -> None:
    blobs = BlobStore(str(tmp_path))
    kept = await offload_async(chunk(pack_tokens([1, 2, 3])), blobs, limit=4)
    assert kept.tokens.data == b""
    assert kept.log_probs.blob is None
    assert fetch(kept.tokens, blobs).tolist() == [1, 2, 3]


def test_blob_of_another_length_than_the_array_says(tmp_path: Path) -> None:
    blobs = BlobStore(str(tmp_path))
    with pytest.raises(DamagedEvent):
        fetch(Array(dtype="int32", n=3, blob=blobs.put(b"\0" * 8)), blobs)


def test_full_disk_is_no_space_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoSpace, match="no space"):
        BlobStore(str(tmp_path)).put(b"payload")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_s3_that_is_not_there_is_store_unavailable() -> None:
    options = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}}
    options |= {"config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1}, "skip_instance_cache": True}
    blobs = BlobStore("s3://slime/blobs", options)
    with pytest.raises(StoreUnavailable, match="s3://slime/blobs"):
        blobs.put(b"payload")


def test_every_payload_of_an_event_is_named() -> None:
    refs = [BlobRef(sha256=digit * 64, size=4) for digit in "abc"]
    arrays = tuple(Array(dtype="int32", n=1, blob=ref) for ref in refs)
    assert list(blob_refs((*arrays[:2], (arrays[2],), pack_tokens([1])))) == refs
