"""The closing words: what was reached, honestly, and three commands."""

from __future__ import annotations

from slime_events.demo.words import closing_words

REQUIRED = {"reward_first": 0.35, "reward_last": 0.961, "weight_versions": 60, "events": 12034, "seconds": 203.2}


def test_the_least_that_is_known_is_enough() -> None:
    words = closing_words(REQUIRED)
    assert "0.35 -> 0.96" in words
    assert "not new\narithmetic" in words
    assert "held-out  " not in words


def test_what_is_known_is_said() -> None:
    words = closing_words(
        REQUIRED
        | {"eval_first": 0.5, "eval_last": 0.99, "response_tokens_first": 9.1, "response_tokens_last": 24.8}
        | {"run": "mine", "folder": "runs/mine", "sample": "g7-3"}
    )
    assert "0.50 -> 0.99" in words
    assert "9 -> 25 tokens" in words
    for expected in ("runs/mine", "show mine ", "show mine --sample g7-3", "demo --model smollm2-135m"):
        assert expected in words


def test_smollm2_gets_its_own_words() -> None:
    words = closing_words(REQUIRED | {"run": "smollm2-135m", "task": "arithmetic"})
    assert "real pretrained model" in words
    assert "--model" not in words
