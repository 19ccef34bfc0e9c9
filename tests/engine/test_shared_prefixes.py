"""Every different prefix of a batch once, and each sequence with all of its rows."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from serve_apps.engines.cpu import shared_prefixes
from serve_apps.engines.cpu.shared_prefixes import SharedPrefixes

SEQUENCES = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.booleans()), min_size=1)


def _shared(sequences: list[tuple[list[int], bool]]) -> SharedPrefixes | None:
    tokens = np.array([token for sequence, _ in sequences for token in sequence])
    return shared_prefixes.shared_prefixes(tokens, [len(s) for s, _ in sequences], [whole for _, whole in sequences])


@given(SEQUENCES)
def test_a_row_for_every_different_prefix(sequences: list[tuple[list[int], bool]]) -> None:
    # What follows cached tokens is a sequence of its own: nobody knows here what those are.
    prefixes = [
        (None if whole else number, *sequence[: end + 1])
        for number, (sequence, whole) in enumerate(sequences)
        for end in range(len(sequence))
    ]
    shared = _shared(sequences)
    if shared is None:
        assert len(set(prefixes)) == len(prefixes)
        return
    assert len(shared.own) == len(set(prefixes)) < len(prefixes)
    assert [prefixes[shared.own[row]] for row in shared.row] == prefixes
    ends = list(accumulate(len(sequence) for sequence, _ in sequences))
    last = [range(end - new, end) for end, new in zip(ends, shared.new.tolist(), strict=True)]
    assert [number for numbers in last for number in numbers] == shared.own.tolist()


def _pass(**changed: Any) -> Any:
    tokens = [5, 6, 7, 5, 6, 8, 5, 6]
    fields = {
        "forward_mode": SimpleNamespace(name="EXTEND"),
        "input_embeds": None,
        "encoder_lens": None,
        "positions": torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]),
        "mrope_positions": None,
        "replace_embeds": None,
        "mm_inputs": [None, None, None],
        "lora_ids": [None, None, None],
        "capture_hidden_mode": SimpleNamespace(need_capture=lambda: False),
        "extend_prefix_lens": torch.tensor([0, 0, 0]),
        "extend_seq_lens": torch.tensor([3, 3, 2]),
        "input_ids": torch.tensor(tokens),
    }
    return SimpleNamespace(**{**fields, **changed})


def _backend(pool: str = "MHATokenToKVPool") -> Any:
    return SimpleNamespace(token_to_kv_pool=type(pool, (), {})())


def test_a_pass_computes_them_and_gives_them_to_all() -> None:
    batch = _pass()
    shared_prefixes.share(_backend(), batch)
    assert batch.input_ids.tolist() == [7, 8, 5, 6]
    assert batch.positions.tolist() == [2, 2, 0, 1]
    shared_prefixes.share(_backend(), batch)
    assert batch.input_ids.tolist() == [7, 8, 5, 6]
    seen: list[Any] = []

    def attend(_: Any, query: Any, keys: Any, values: Any, layer: Any, inner: Any, save: bool) -> torch.Tensor:
        seen.append((query.flatten().tolist(), keys.flatten().tolist(), inner.extend_seq_lens.tolist(), save))
        return query

    rows, layer = torch.tensor([[70], [80], [50], [60]]), SimpleNamespace(sliding_window_size=None)
    assert shared_prefixes.extend(attend, None, rows, rows, rows, layer, batch) is rows
    windowed = SimpleNamespace(sliding_window_size=4)
    assert shared_prefixes.extend(attend, None, rows, rows, rows, windowed, batch).tolist() == rows.tolist()
    whole = [50, 60, 70, 50, 60, 80, 50, 60]
    assert seen == [([70, 80, 50, 60], whole, [1, 1, 2], True), (whole, whole, [3, 3, 2], True)]
    assert batch.extend_seq_lens.tolist() == [3, 3, 2]  # the logits of each sequence are found by them
    hidden = shared_prefixes.logits(lambda *args: args[2], None, batch.input_ids, rows, None, batch)
    assert hidden.flatten().tolist() == whole


def test_other_passes_are_left_as_they_are() -> None:
    others = [
        (_pass(forward_mode=SimpleNamespace(name="TARGET_VERIFY")), _backend()),
        (_pass(), _backend("HybridLinearKVPool")),
        (_pass(input_embeds=torch.zeros(8, 4)), _backend()),
        (_pass(encoder_lens=torch.ones(3)), _backend()),
        (_pass(mrope_positions=torch.zeros(3, 8)), _backend()),
        (_pass(replace_embeds=torch.zeros(8, 4)), _backend()),
        (_pass(mm_inputs=[None, "a picture", None]), _backend()),
        (_pass(lora_ids=["a", None, None]), _backend()),
        (_pass(capture_hidden_mode=SimpleNamespace(need_capture=lambda: True)), _backend()),
        (_pass(extend_prefix_lens=torch.tensor([2, 0, 4])), _backend()),
    ]
    for batch, backend in others:
        shared_prefixes.share(backend, batch)
        assert batch.input_ids.tolist() == _pass().input_ids.tolist()
        rows = torch.zeros(8, 1)
        assert shared_prefixes.extend(lambda *args: args[1], None, rows, rows, rows, None, batch) is rows
        assert shared_prefixes.logits(lambda *args: args[2], None, batch.input_ids, rows, None, batch) is rows
