"""The small pure parts: seeded noise, stop strings at the seam, spans, weight files, log reading."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import EngineError
from schemas.rollouts import Sampling, StopReason, WeightSpan
from serve_apps.engines.arguments import SHIMS
from serve_apps.engines.cpu.sampling import filtered_choice, murmur_hash32, seeded_choice
from serve_apps.engines.response import KEPT, KEPT_LOG_PROBS, how_it_ended, kept_at_seam, kept_tokens, spans_within
from serve_apps.engines.sglang_engine import reason_in_log
from serve_apps.engines.weight_shapes import misfit, shapes_in


def _murmur3_reference(data: bytes) -> int:
    """MurmurHash3 x86_32 with seed 0 over whole 4-byte blocks, one integer at a time."""

    def rotate(x: int, r: int) -> int:
        return ((x << r) | (x >> (32 - r))) & 0xFFFFFFFF

    h = 0
    for (k,) in struct.iter_unpack("<I", data):
        h ^= rotate(k * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        h = (rotate(h, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= len(data)
    h = (h ^ (h >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ (h >> 16)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**20), st.integers(1, 40))
def test_the_noise_is_murmur3_of_seed_position_and_column(seed: int, position: int, columns: int) -> None:
    seeds = np.array([seed, 5], dtype=np.int64).view(np.uint64)
    hashed = murmur_hash32(seeds, np.array([position, 9]), columns)
    assert _murmur3_reference(b"") == 0
    assert hashed.shape == (2, columns)
    last = struct.pack("<QII", seed % 2**64, position, columns - 1)
    assert hashed[0, -1] == _murmur3_reference(last)


def test_choices_follow_the_probabilities() -> None:
    probabilities = np.array([0.5, 0.3, 0.2, 0.0])
    with np.errstate(divide="ignore"):
        log_probs = np.tile(np.log(probabilities), (20_000, 1))
    chosen = seeded_choice(log_probs, np.arange(20_000, dtype=np.uint64), np.full(20_000, 17))
    counts = np.bincount(chosen[:, 0], minlength=4) / 20_000
    np.testing.assert_allclose(counts, probabilities, atol=0.015)
    assert counts[3] == 0


@pytest.mark.parametrize(
    ("resumed", "new", "seen", "kept"),
    [
        ("..</", "div>..", 0, 4),
        ("..</", "div>..", 2, 2),
        ("....", "</div>", 0, None),
        ("..</", "dov>..", 0, None),
        ("..</div", ">", 0, 1),
    ],
)
def test_a_stop_string_across_the_seam(resumed: str, new: str, seen: int, kept: int | None) -> None:
    ids = [list(map(ord, part)) for part in (resumed, new)]
    assert kept_at_seam(*ids, seen, ("</div>", "</p>"), lambda tokens: "".join(map(chr, tokens))) == kept


def test_spans_are_cut_to_the_piece_and_counted_from_the_response() -> None:
    spans = [{"version": "3", "start": 0, "end": 10}, {"version": "4", "start": 10, "end": 25}]
    assert spans_within(spans, 100, 105, 120) == (WeightSpan(105, 110, 3), WeightSpan(110, 120, 4))
    assert spans_within(spans, 0, 12, 25) == (WeightSpan(12, 25, 4),)
    assert spans_within(spans, 0, 25, 25) == ()


def _weights(path: Path, shapes: dict[str, list[int]], short: int = 0) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end - short))


def test_weight_files_are_known_by_their_headers(tmp_path: Path) -> None:
    _weights(tmp_path / "a.safetensors", {"embed": [4, 2]})
    _weights(tmp_path / "b.safetensors", {"norm": [2]})
    have = shapes_in(tmp_path)
    assert have == {"embed": (4, 2), "norm": (2,)}
    assert misfit(have, have) is None
    assert misfit(have, have | {"lm_head.weight": (4, 2)}) is None
    assert "norm is missing" in (misfit(have, {"embed": (4, 2)}) or "")
    assert "[4, 3]" in (misfit(have, have | {"embed": (4, 3)}) or "")
    assert "other is not in" in (misfit(have, have | {"other": (1,)}) or "")


@pytest.mark.parametrize("content", [b"", b"12345678", b"\x02\0\0\0\0\0\0\0[]", b"\xff" * 20])
def test_a_damaged_weight_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(EngineError, match=r"a\.safetensors"):
        shapes_in(tmp_path)


@pytest.mark.parametrize("short", [1, -1])
def test_a_weight_file_has_as_many_bytes_as_its_header_says(tmp_path: Path, short: int) -> None:
    _weights(tmp_path / "a.safetensors", {"embed": [4, 2]}, short=short)
    with pytest.raises(EngineError, match=r"a\.safetensors"):
        shapes_in(tmp_path)


def test_the_reason_is_the_last_exception_in_the_log() -> None:
    log = "loading\nTraceback ...\nValueError: first\n\nsglang.errors.BadError: the one\n  at exit\n"
    assert reason_in_log(log) == "sglang.errors.BadError: the one"
    assert reason_in_log("only\nlines, no Error here\n") == ""
    assert reason_in_log("") == ""


def test_placeholders_can_be_imported_and_named_but_not_called() -> None:
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from torchvision.transforms import InterpolationMode
from sgl_kernel.anything.deeper import kernel
InterpolationMode.NEAREST_EXACT
class Mine(kernel): pass
try:
    kernel(1)
except NotImplementedError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(SHIMS)], capture_output=True, text=True, check=True, timeout=30
    )
    assert "sgl_kernel.anything.deeper.kernel is a placeholder" in done.stdout


def test_a_response_that_ignores_the_model_s_ends_goes_on() -> None:
    sampling = Sampling(max_new_tokens=10, stop_token_ids=(ord("?"),), more={"ignore_eos": True})
    assert how_it_ended([1, ord("!")], sampling, {ord("!")}, str) is None
    assert how_it_ended([1, ord("?")], sampling, {ord("!")}, str) is StopReason.STOP


@pytest.mark.parametrize(
    ("response", "ended"),
    [
        ("", None),
        ("abc", None),
        ("ab!", StopReason.STOP),
        ("a!b", None),
        ("ab?", StopReason.STOP),
        ("ab</p>", StopReason.STOP),
        ("ab</p", None),
        ("abcdefghij", StopReason.LENGTH),
        ("abcdefghi!", StopReason.STOP),
    ],
)
def test_how_a_response_has_ended_by_itself(response: str, ended: StopReason | None) -> None:
    sampling = Sampling(max_new_tokens=10, stop=("</p>",), stop_token_ids=(ord("?"),))
    ending = how_it_ended([*map(ord, response)], sampling, {ord("!")}, lambda tokens: "".join(map(chr, tokens)))
    assert ending is ended


def test_filtered_sampling_says_what_it_kept_and_draws_the_same() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]])
    inputs = (probs, torch.tensor([4, 2, 4]), torch.tensor([0.75, 1.0, 1.0]), torch.zeros(3), False)
    seeds, positions = torch.tensor([1, 2, 3]), torch.tensor([5, 6, 7])
    plain = filtered_choice(None, *inputs, seeds, positions)
    drawn, weights, ids, chosen = filtered_choice(None, *inputs, seeds, positions, return_filtered_probs=True)
    assert drawn.tolist() == plain.tolist()
    assert [row[left > 0].tolist() for row, left in zip(ids, weights, strict=True)] == [[0, 1], [3, 2], [0, 1, 2, 3]]
    assert all(row == sorted(row, reverse=True) for row in weights.tolist()), "SGLang takes the first ones"
    assert chosen.tolist() == pytest.approx([probs[row, token].item() for row, token in enumerate(drawn)])


@pytest.mark.parametrize("before", [[], [[1], [2, 3]]])
def test_kept_ids_are_those_of_the_tokens_that_came_last(before: list[list[int]]) -> None:
    """Whether SGLang gives them with those of earlier pieces or without."""
    meta = {KEPT: [*before, [7, 5], [6], [9, 8]], KEPT_LOG_PROBS: [*(-9.0 for _ in before), -1.0, -2.0, -3.0]}
    ids, counts, log_probs = kept_tokens(meta, 3, 2)
    assert [ids.tolist(), counts.tolist(), log_probs.tolist()] == [[5, 7, 6], [2, 1], [-1.0, -2.0]]
