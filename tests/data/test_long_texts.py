"""A text that has by far too many tokens is not tokenised whole, and one that has not is."""

from __future__ import annotations

from typing import Any

import pytest

from slime_events.plugins.tokenizer import PIECE, has_far_more
from tests.agents.models import MODELS, tokenizer
from tests.data.counted import Counted

TOKENIZER = tokenizer(MODELS[0])


@pytest.mark.parametrize("text", ["x" * 8_000_000, "x " * 4_000_000, "\n" * 8_000_000, "\u4e2d" * 2_000_000])
def test_no_more_is_read_than_tells_it(text: str) -> None:
    counted: Any = Counted()
    assert has_far_more(counted, text, 1000)
    assert has_far_more(TOKENIZER, text, 1000)
    assert counted.read == [PIECE]


def test_one_of_the_allowed_length_is_not_counted_twice() -> None:
    counted: Any = Counted(4)
    assert not has_far_more(counted, "word" * 100_000, 100_000)
    assert counted.read == []


def test_few_tokens_of_many_characters_are_allowed() -> None:
    counted: Any = Counted(64)
    assert not has_far_more(counted, "x" * 6_400_000, 100_000)
    assert sum(counted.read) == 6_400_000


@pytest.mark.parametrize(("tokens", "has_more"), [(0, False), (2 * 10_000, False), (2 * 10_000 + 1, True)])
def test_a_text_is_refused_from_twice_the_tokens_on(tokens: int, has_more: bool) -> None:
    class Told(Counted):
        def encode(self, text: str, **how: Any) -> list[int]:
            piece = tokens if not self.read else 0
            super().encode(text, **how)
            return [0] * piece

    counted: Any = Told(64)
    assert has_far_more(counted, "x" * (8 * 10_000 + 1), 10_000) is has_more
    read = list(counted.read)
    assert not has_far_more(counted, "x" * (8 * 10_000), 10_000)
    assert not has_far_more(counted, "x" * PIECE, 1)
    assert counted.read == read, "one that is not very long is not counted"
