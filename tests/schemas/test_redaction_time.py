"""Redaction of any text takes time in proportion to its length, and never shows half a secret."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UnknownGrader
from schemas.redaction import MASK, MORE, PATTERNS, cut, redact, shown, substitute

SIZE = 50_000
MOST_S = 0.75
"""Seconds of CPU: a linear pattern takes some hundredths, the quadratic ones that there were took two and more."""
ATOMS = (
    *("a", "A", "0", " ", "\t", "\n", "é", "-", "_", ".", "+", ":", "/", "?", "#", "@", "[", "]", "&", ";", "=", "%"),
    *('"', "'", "<", ">", "{", "}", ",", "://", "a://", "a:", "a@", "a.", "a-", "a=", "${", "${A}", "%20", "\x00"),
    *("secret", "passw", "password", "passphrase", "api_key", "api-", "access", "access.key", "access-key-id"),
    *("token", "credential", "signature", "sig", "key", "auth", "authorization", "proxy-", "proxy-authorization"),
    *("bearer", "bearer ", "basic ", "token ", "x-", "x-api-key", "auth-token", "AKIA", "S", "SU", "hf_", "gho_"),
    *("sk-", "eyJ", "eyJa", "eyJa.", "eyJa-", ".eyJ", "nats://", "http://", "a://b:", "a://b:c/", "://a:1"),
    *('"token"', '"token":', "'key' : ", "token=", "token = ", "?token=", "authorization: ", "authorization: bearer "),
)
"""What the patterns are made of, and what ends their parts."""


def seconds(text: str) -> float:
    begin = time.process_time()  # of this process: others may have the cores
    redact(text)
    return time.process_time() - begin


@pytest.mark.parametrize("atom", ATOMS, ids=ascii)
def test_one_part_again_and_again(atom: str) -> None:
    """Alone, and with each other part before and after it: what begins a form that never ends."""
    assert seconds(atom * (SIZE // len(atom))) < MOST_S
    assert seconds("token=" + atom * (SIZE // len(atom)) + "@") < MOST_S


@pytest.mark.parametrize("first", ATOMS, ids=ascii)
def test_two_parts_in_turn_and_two_runs(first: str) -> None:
    size = SIZE // 10
    for second in (*ATOMS[::4], "@", " ", "://", "-", '"'):
        pair = first + second
        assert seconds(pair * (size // len(pair))) < MOST_S / 5, pair
        runs = first * (size // 2 // len(first)) + second * (size // 2 // len(second))
        assert seconds(runs) < MOST_S / 5, pair


@given(st.lists(st.sampled_from(ATOMS), min_size=1, max_size=5), st.lists(st.sampled_from(ATOMS), max_size=3))
def test_any_parts_in_turn(turn: list[str], end: list[str]) -> None:
    size = SIZE // 4
    repeated = "".join(turn)
    assert seconds(repeated * (size // len(repeated)) + "".join(end)) < MOST_S


@pytest.mark.parametrize("pattern", PATTERNS, ids=range(len(PATTERNS)))
def test_a_pattern_finds_as_much_in_a_long_text(pattern: object) -> None:
    """A long text before a secret hides nothing."""
    forms = {
        "a" * SIZE + "://me:hidden-1@host",
        "a" * SIZE + " nats://hidden-1@host",
        "?" * SIZE + "?token=hidden-1",
        "x" * SIZE + " authorization: hidden-1",
        "x" * SIZE + " token=hidden-1",
        "eyJ-" * (SIZE // 4) + " eyJhidden-1.eyJa.b",
        "-" * SIZE + "eyJhidden-1.eyJa.b",
    }
    assert pattern in PATTERNS
    for form in forms:
        assert "hidden-1" not in redact(form)


def test_an_error_with_a_very_long_text_is_said_at_once() -> None:
    begin = time.process_time()
    message = str(UnknownGrader("no grader " + "a:" * 5_000_000))
    assert time.process_time() - begin < 4 * MOST_S
    assert len(message) < 1_000_000
    assert message.startswith("no grader")


def test_what_is_short_is_not_cut() -> None:
    text = "x" * 100_000
    assert shown(text) == text


@given(st.integers(0, 400), st.text("ab c", max_size=400), st.integers(20, 300))
def test_a_cut_never_shows_the_half_of_a_secret(before: int, after: str, limit: int) -> None:
    secret = "Q7-" + "z" * 200
    for form in ("nats://me:{}@host", "token={}", "Authorization: Bearer {}", "x {} y"):
        text = cut("b " * before + form.format(secret) + after, limit, [secret])
        assert "zz" not in text
        assert len(text) <= limit


def test_a_word_that_ends_beyond_what_is_redacted_is_left_out() -> None:
    """A password before an `@` that is far away."""
    text = cut("refused nats://me:" + "z" * 100_000 + "@host", 300)
    assert text == f"refused {MORE}"
    assert "zz" not in shown("refused nats://me:" + "z" * 1_000_000 + "@host")


def test_a_password_with_at_signs_is_gone_to_its_last() -> None:
    text = redact('"s3://u:a@b/c@d" <s3://u:p@h> s3://u:q@h/x@y, nothing://here')
    assert text == f'"s3://u:{MASK}@b/c@d" <s3://u:{MASK}@h> s3://u:{MASK}@h/x@y, nothing://here'


def test_what_substitutes_keeps_everything_else() -> None:
    for pattern in PATTERNS:
        text = "a://b:c@d e://f:g@h?token=x authorization: y eyJa.eyJb.c"
        assert substitute(pattern, text, lambda secret: secret) == text
