"""Text from outside, made safe to store, to send and to print."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.text import MESSAGE_CHARACTERS, message_text, terminal_text, valid_text

any_text = st.text(st.characters(codec=None, categories=None, exclude_categories=()), max_size=200)


@given(any_text)
def test_a_valid_text_can_be_encoded_and_stays_so(text: str) -> None:
    valid = valid_text(text)
    assert valid.encode().decode() == valid == valid_text(valid)
    assert len(valid) == len(text)


@given(st.text(max_size=200))
def test_a_text_that_is_valid_is_not_changed(text: str) -> None:
    assert valid_text(text) == text


@pytest.mark.parametrize("half", [chr(0xD83D), f"{chr(0xDC80)}x", f"a{chr(0xD83D)}b"])
def test_half_a_character_becomes_a_replacement(half: str) -> None:
    assert "\ufffd" in valid_text(half)


@given(any_text, st.integers(0, 100))
def test_a_limit_is_kept_where_the_note_fits(text: str, limit: int) -> None:
    note = f"... ({len(text):,} characters)"
    assert len(valid_text(text, limit)) <= max(limit, len(note))


def test_a_message_is_short() -> None:
    assert len(message_text(RuntimeError("y" * 1_000_000))) == MESSAGE_CHARACTERS


def test_an_exception_that_cannot_be_read_has_a_message() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Unreadable" in message_text(Unreadable())


@given(any_text)
def test_a_terminal_obeys_nothing(text: str) -> None:
    printed = terminal_text(text)
    printed.encode()
    assert not {char for char in printed if unicodedata.category(char) in ("Cc", "Cs")} - {"\t", "\n"}
    assert "\u202e" not in printed
