"""Test the digest of weights: of names, dtypes, shapes and bytes, and of nothing else. Recorded logs contain it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
import pytest

from storage.digests import TensorDigest, tensor_digests, weights_digest

TENSORS = {"b": TensorDigest.of("BF16", (), b"\1\2"), "a": TensorDigest.of("F32", (2, 3), bytes(24))}


def test_it_is_over_lines_in_the_order_of_names() -> None:
    zeros, scalar = hashlib.sha256(bytes(24)).hexdigest(), hashlib.sha256(b"\1\2").hexdigest()
    lines = f"a F32 2x3 {zeros}\nb BF16  {scalar}\n"
    assert weights_digest(TENSORS) == hashlib.sha256(lines.encode()).hexdigest()


def test_a_stream_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are hashed side by side, few of them at a time, in any order of ends."""
    monkeypatch.setattr("storage.digests.AT_ONCE_BYTES", 3000)
    monkeypatch.setattr("storage.digests.AT_HAND_BYTES", 0)
    held, most = 0, 0

    class Counted(bytearray):
        def __del__(self) -> None:
            nonlocal held
            held -= 1

    def stream() -> Iterator[tuple[str, tuple[str, tuple[int, ...], bytearray]]]:
        nonlocal held, most
        for number in range(50):
            held += 1
            most = max(most, held)
            yield str(number), ("U8", (1000,), Counted(bytes([number]) * 1000))

    digests = tensor_digests(stream())
    assert most < 10
    one_by_one = {str(n): TensorDigest.of("U8", (1000,), bytes([n]) * 1000) for n in range(50)}
    assert digests == one_by_one
    assert list(digests) == list(one_by_one)


@pytest.mark.parametrize(
    "changes", [{"dtype": "I32"}, {"shape": (3, 2)}, {"sha256": hashlib.sha256(bytes(23) + b"\1").hexdigest()}]
)
def test_any_other_tensor_is_another_digest(changes: dict[str, object]) -> None:
    other = TENSORS | {"a": msgspec.structs.replace(TENSORS["a"], **changes)}  # type: ignore[arg-type]
    assert weights_digest(other) != weights_digest(TENSORS)
    assert weights_digest({"c": TENSORS["a"], "b": TENSORS["b"]}) != weights_digest(TENSORS)


def test_small_and_large_tensors_have_digests_of_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calling thread hashes the first and the threads the rest."""
    monkeypatch.setattr("storage.digests.AT_HAND_BYTES", 100)
    named = {str(size): ("U8", (size,), bytes([size % 256]) * size) for size in (0, 1, 99, 100, 101, 1000)}
    assert {name: digest.sha256 for name, digest in tensor_digests(named.items()).items()} == {
        name: hashlib.sha256(data).hexdigest() for name, (_, _, data) in named.items()
    }
