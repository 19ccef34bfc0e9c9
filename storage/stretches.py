"""Stretches of an archive, perhaps made by another process.

segment -> its sha256 -> positions -> chain over every record's bytes -> Stretch (in another process, where it is worth
one) -> whoever folds
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import multiprocessing
import struct
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection

import msgspec

from schemas.errors import ArchiveDamaged, SlimeEventsError, StoreUnavailable
from storage.archive_manifest import SegmentManifest
from storage.archive_reader import ArchiveReader
from storage.archive_segment import record_at
from storage.stretch import Stretch, stretch_of

WORTH_A_PROCESS = 200_000
"""Events from which on a second process reads ahead: it takes half a second to start."""
PIPE_BYTES = 1 << 20
"""Of the pipe between them: sixteen times what it has by itself, so that fewer turns are taken."""
PATIENCE_S = 300.0
"""Seconds without a segment after which the store is taken for dead."""

_length = struct.Struct("<I").unpack_from


def stretches(reader: ArchiveReader, start: int, chain: bytes, every: int) -> Generator[Stretch, None, None]:
    """From position `start` on, where the chain so far is `chain`. One ends at each multiple of `every`.

    Raises as `ArchiveReader`.
    """
    for manifest in reader.segments:
        if manifest.last < start:
            continue
        for stretch in _of_segment(reader, manifest, start, chain, every):
            chain = stretch.chain
            yield stretch


def read_ahead(reader: ArchiveReader, start: int, chain: bytes, every: int) -> Generator[Stretch, None, None]:
    """The same, made by another process while the one before is worked on."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    with contextlib.suppress(OSError):  # beyond what this user may have in pipes: it works with a small one too
        fcntl.fcntl(here.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    process = context.Process(target=_send, args=(there, reader, start, chain, every), daemon=True)
    process.start()
    there.close()
    try:
        while (got := _receive(here, reader)) is not None:
            yield got
    finally:
        here.close()
        process.terminate()
        process.join()


def _receive(here: Connection, reader: ArchiveReader) -> Stretch | None:
    if not here.poll(PATIENCE_S):
        raise StoreUnavailable(f"{reader.url} gave nothing for {PATIENCE_S:.0f} s: is the store still there?")
    try:
        first, last, before, chain, error = msgspec.msgpack.decode(here.recv_bytes(), type=_Head)
    except EOFError:
        raise StoreUnavailable(f"the process that read {reader.url} ahead has died: read it again") from None
    if error:
        raise ArchiveDamaged(error)
    return Stretch(first, last, before, chain, here.recv_bytes()) if last else None


_Head = tuple[int, int, bytes, bytes, str]
"""A stretch without its records, which follow; all empty: that was the last."""


def _send(there: Connection, reader: ArchiveReader, start: int, chain: bytes, every: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more
        try:
            for first, last, before, chain_, records in stretches(reader, start, chain, every):
                there.send_bytes(msgspec.msgpack.encode((first, last, before, chain_, "")))
                there.send_bytes(records)
        except SlimeEventsError as error:
            there.send_bytes(msgspec.msgpack.encode((0, 0, b"", b"", str(error))))
        else:
            there.send_bytes(msgspec.msgpack.encode((0, 0, b"", b"", "")))


def _of_segment(
    reader: ArchiveReader, manifest: SegmentManifest, start: int, chain: bytes, every: int
) -> Iterator[Stretch]:
    raw = reader.raw(manifest)
    offset, position, before = 0, manifest.first, chain
    fresh, datas = hashlib.sha256().copy, list[bytes]()
    try:
        _check(raw, 0, position)
        while offset < len(raw):
            (size,) = _length(raw, offset)
            end = offset + 4 + size
            if position >= start:
                datas.append(raw[_data_at(raw, offset + 4) : end])
                before, hashed = chain, fresh()
                hashed.update(chain)
                hashed.update(datas[-1])
                chain = hashed.digest()
                if not position % every:
                    yield stretch_of(position, before, chain, datas)
                    datas = []
            last, offset, position = offset, end, position + 1
        _check(raw, last, manifest.last)
    except (struct.error, IndexError, KeyError, ArchiveDamaged) as error:
        raise reader.damaged_segment(manifest, f"not a segment: {error}") from error
    if position != manifest.last + 1:
        raise reader.damaged_segment(manifest, f"it ends at position {position - 1}")
    if datas:
        yield stretch_of(manifest.last, before, chain, datas)


def _check(raw: bytes, place: int, position: int) -> None:
    """That the first and the last record are where they belong; as many in between are, by the segment's sha256."""
    found = record_at(raw, place).position
    if found != position:
        raise ArchiveDamaged(f"position {found} stands where {position} should")


_INTEGER = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}
_BYTES = {0xC4: 2, 0xC5: 3, 0xC6: 5}
"""MessagePack's heads: bytes of an integer with its head, of the head of a byte string."""


def _data_at(raw: bytes, place: int) -> int:
    """Where the event's bytes begin in the record [position, subject, bytes]: found without decoding the rest."""
    subject = place + 1 + _INTEGER.get(raw[place + 1], 1)
    head = raw[subject]
    if head == 0xD9:
        data = subject + 2 + raw[subject + 1]
    elif head == 0xDA:
        data = subject + 3 + int.from_bytes(raw[subject + 1 : subject + 3], "big")
    else:
        data = subject + 1 + (head & 0x1F)
    return data + _BYTES[raw[data]]
