"""Deltas of tensors: exact in both encodings, readable by plain zstd, refused if damaged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import WeightsDamaged
from storage.weights import delta
from storage.weights.delta import BLOCK_BYTES, apply, checksum, encode
from storage.weights.delta_rule import DeltaChecksum, DeltaEncoding

ENCODINGS = list(DeltaEncoding)
DTYPES = [torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.int64, torch.uint8, torch.float8_e4m3fn]


def applied(encoding: DeltaEncoding, old: bytes | None, new: bytes) -> bytes:
    """The result of a delta on a copy of the old bytes, or on zeros."""
    memory = bytearray(len(new)) if old is None else bytearray(old)
    frame = encode(encoding, None if old is None else memoryview(old), memoryview(new))
    apply(encoding, memoryview(frame), memory)
    return bytes(memory)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Old and new bytes of one size, of which some differ."""
    old = bytearray(draw(st.binary(max_size=300)))
    new = bytearray(old)
    for at in draw(st.lists(st.integers(0, max(0, len(old) - 1)), max_size=20)) if old else ():
        new[at] = draw(st.integers(0, 255))
    return bytes(old), bytes(new)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(pairs())
def test_applying_gives_the_new_bytes(encoding: DeltaEncoding, pair: tuple[bytes, bytes]) -> None:
    old, new = pair
    assert applied(encoding, old, new) == new
    assert applied(encoding, None, new) == new


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (33, 65), (BLOCK_BYTES // 2 + 5, 3)], ids=str)
def test_every_dtype_and_shape(encoding: DeltaEncoding, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    before = (torch.randn(shape, generator=generator) * 5).to(dtype)
    after = torch.where(torch.rand(shape, generator=generator) < 0.02, torch.zeros((), dtype=dtype), before)
    old, new = (tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in (before, after))
    assert applied(encoding, old, new) == new


def test_the_format_is_slimes() -> None:
    """Reads both encodings by their description: no code of ours decodes them here."""
    rng = np.random.default_rng(0)
    old = rng.integers(0, 256, 1000, np.uint8)
    new = old.copy()
    new[[3, 500, 999]] += 1
    xor = zstandard.ZstdDecompressor().decompress(encode(DeltaEncoding.XOR, old.data, new.data))
    assert np.array_equal(np.frombuffer(xor, np.uint8) ^ old, new)
    raw = zstandard.ZstdDecompressor().decompress(encode(DeltaEncoding.OVERWRITE, old.data, new.data))
    assert np.frombuffer(raw, "<u4", 4).tolist() == [3, 3, 500, 999]
    assert raw[16:] == new[[3, 500, 999]].tobytes()
    assert checksum(DeltaChecksum.XXH3, new.data) == xxhash.xxh3_128(new.tobytes()).hexdigest()
    assert checksum(DeltaChecksum.ADLER32, b"abc") == "024d0127"  # the value in the algorithm's definition, RFC 1950


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_overwriting_twice_is_overwriting_once_and_xor_goes_back(encoding: DeltaEncoding) -> None:
    old, new = b"a" * 40, b"a" * 20 + b"b" * 20
    frame, memory = memoryview(encode(encoding, memoryview(old), memoryview(new))), bytearray(old)
    apply(encoding, frame, memory)
    apply(encoding, frame, memory)
    assert bytes(memory) == (old if encoding is DeltaEncoding.XOR else new)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(data=st.data(), pair=pairs())
def test_a_cut_delta_is_damaged(encoding: DeltaEncoding, data: st.DataObject, pair: tuple[bytes, bytes]) -> None:
    old, new = pair
    frame = encode(encoding, memoryview(old), memoryview(new))
    end = data.draw(st.integers(0, len(frame) - 1))
    if encoding is DeltaEncoding.XOR and not new:
        return  # nothing is left to be wrong: an empty tensor has its bytes
    with pytest.raises(WeightsDamaged):
        apply(encoding, memoryview(frame[:end]), bytearray(old))


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(st.binary(max_size=80))
def test_no_bytes_make_it_raise_anything_else(encoding: DeltaEncoding, frame: bytes) -> None:
    memory = bytearray(10)
    try:
        apply(encoding, memoryview(frame), memory)
    except WeightsDamaged:
        return
    assert len(memory) == 10


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_delta_of_a_larger_tensor_is_damaged(encoding: DeltaEncoding) -> None:
    frame = encode(encoding, None, memoryview(b"x" * 100))
    for size in (50, 0):
        with pytest.raises(WeightsDamaged):
            apply(encoding, memoryview(frame), bytearray(size))


def test_a_frame_that_holds_far_more_is_refused_before_memory_is_taken() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(200_000_000))
    for encoding in ENCODINGS:
        with pytest.raises(WeightsDamaged):
            apply(encoding, memoryview(bomb), bytearray(100))


def test_sizes_that_cannot_be_encoded_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="one size"):
        encode(DeltaEncoding.XOR, memoryview(b"ab"), memoryview(b"a"))
    monkeypatch.setattr(delta, "OVERWRITE_LIMIT", 10)
    assert applied(DeltaEncoding.OVERWRITE, b"a" * 9, b"b" * 9) == b"b" * 9
    with pytest.raises(ValueError, match="positions"):
        encode(DeltaEncoding.OVERWRITE, memoryview(b"a" * 10), memoryview(b"b" * 10))
