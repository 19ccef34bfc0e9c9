"""Why rows were refused, counted: each kind once, the most common first, and no more words than anybody reads."""

from __future__ import annotations

from slime_events.loop.prompts.refusals import KINDS, LENGTH, REASONS, ReasonCounts


def counted(*messages: str) -> list[str]:
    """The parts of the sentence."""
    return str(ReasonCounts(messages)).split(", ")


def test_reasons_that_differ_in_numbers_are_one() -> None:
    assert counted("row 1 is bad", "row 22 is bad", "other") == ["2 x row 1 is bad", "1 x other"]
    assert counted("too long; 5 tokens", "too long; x") == ["2 x too long"]
    assert str(ReasonCounts()) == ""


def test_the_most_common_is_first_and_the_rest_is_a_count() -> None:
    letters = "abcde" + "bcde" + "cde" + "de"
    assert counted(*letters) == ["4 x d", "4 x e", "3 x c", "2 x b", "1 x other reasons"]
    assert counted(*"aab", *"ccc", *"dddd") == ["4 x d", "3 x c", "2 x a", "1 x b"]
    assert REASONS == 4


def test_a_long_reason_is_cut() -> None:
    (whole,), (cut,) = counted("x" * LENGTH), counted("y" * (LENGTH + 1))
    assert whole == f"1 x {'x' * LENGTH}"
    assert cut == f"1 x {'y' * (LENGTH - 3)}..."


def test_reasons_that_begin_alike_for_long_are_one() -> None:
    assert len(counted("x" * 2 * LENGTH + "a", "x" * 2 * LENGTH + "b")) == 1
    assert len(counted("x" * (2 * LENGTH - 1) + "a", "x" * (2 * LENGTH - 1) + "b")) == 2


def test_no_more_reasons_are_held_than_can_be_read() -> None:
    counts = ReasonCounts("z" * number for number in range(1, KINDS + 1))
    for _ in range(5):
        counts.add("another")
        counts.add("one more")
        counts.add("z")
    assert str(counts).split(", ")[:2] == ["10 x other reasons", "6 x z"]
    assert str(counts).split(", ")[-1] == f"{KINDS - REASONS + 1} x other reasons"
