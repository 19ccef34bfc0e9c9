"""Any text that is refused without being tokenised whole has too many tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slime_events.plugins.tokenizer import PIECE, has_far_more
from tests.agents.models import MODELS, tokenizer

TOKENIZER = tokenizer(MODELS[0])


@settings(max_examples=40)  # each tokenises up to 4 * PIECE characters
@given(st.text(max_size=40), st.integers(1, 3 * PIECE), st.integers(1, 30_000))
def test_what_is_refused_has_too_many_tokens(text: str, repeats: int, most: int) -> None:
    long = (text * repeats)[: 4 * PIECE].encode("utf-8", "replace").decode()
    if has_far_more(TOKENIZER, long, most):
        assert len(TOKENIZER.encode(long, add_special_tokens=False)) > most
