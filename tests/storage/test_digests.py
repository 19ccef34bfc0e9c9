"""The digest of weights: of names, dtypes, shapes and bytes, and of nothing else. Recorded logs name it for ever."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from storage.digests import TensorDigest, weights_digest

TENSORS = {"b": TensorDigest.of("BF16", (), b"\1\2"), "a": TensorDigest.of("F32", (2, 3), bytes(24))}


def test_it_is_over_lines_in_the_order_of_names() -> None:
    zeros, scalar = hashlib.sha256(bytes(24)).hexdigest(), hashlib.sha256(b"\1\2").hexdigest()
    lines = f"a F32 2x3 {zeros}\nb BF16  {scalar}\n"
    assert weights_digest(TENSORS) == hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.parametrize(
    "changes", [{"dtype": "I32"}, {"shape": (3, 2)}, {"sha256": hashlib.sha256(bytes(23) + b"\1").hexdigest()}]
)
def test_any_other_tensor_is_another_digest(changes: dict[str, object]) -> None:
    other = TENSORS | {"a": msgspec.structs.replace(TENSORS["a"], **changes)}  # type: ignore[arg-type]
    assert weights_digest(other) != weights_digest(TENSORS)
    assert weights_digest({"c": TENSORS["a"], "b": TENSORS["b"]}) != weights_digest(TENSORS)
