"""Token ids that come from outside: whole numbers of the model, or a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InvalidValue
from slime_events.core.checkpoint.vocabulary import HIGHEST, token_ids, vocabulary_of, wrong_id

WHOLE = st.integers(0, 263)
ANYTHING = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.none(), st.text(), st.lists(st.integers(), max_size=2), st.binary()
)


@given(st.lists(WHOLE))
def test_ids_of_the_model_are_taken_in_any_dress(ids: list[int]) -> None:
    dressed: tuple[Any, ...] = (ids, tuple(ids), np.array(ids, np.int64), torch.tensor(ids, dtype=torch.int64))
    for values in (*dressed, [np.int32(token) for token in ids]):
        assert token_ids(values, 264, "tokens").tolist() == ids


@given(st.lists(ANYTHING, max_size=5))
def test_whatever_comes_is_ids_of_the_model_or_a_reason(values: list[Any]) -> None:
    if all(type(token) is int and 0 <= token < 264 for token in values):
        assert token_ids(values, 264, "tokens").tolist() == values
        return
    with pytest.raises(InvalidValue, match=r"^tokens.{1,200}$"):
        token_ids(values, 264, "tokens")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([264], "token 264 is not in the model's vocabulary of 264"),
        ([3, -1], "token -1 is below 0"),
        ([2**31], "not in the model's vocabulary"),
        ([2**64], "65 bits"),
        ([-(10**5000)], "bits"),
        ([1.0], "not float 1.0"),
        ([True], "not bool True"),
        (["7"], "not str '7'"),
        ([[1]], "not list"),
        (np.array([1.5]), "float64"),
        (np.array([[1]]), r"\[1, 1\]"),
        ("12", "not str"),
        (None, "not NoneType"),
    ],
)
def test_what_is_no_id_is_named(values: Any, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        token_ids(values, 264, "tokens")


def test_without_a_size_ids_fit_into_an_event() -> None:
    assert wrong_id(np.array([0, HIGHEST]), None) is None
    assert wrong_id(np.array([HIGHEST + 1]), None)
    assert wrong_id(np.array([-1]), None)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 264}, 264),
        ({"text_config": {"vocab_size": 7}}, 7),
        ({"vocab_size": "264"}, None),
        ({"vocab_size": True}, None),
        ({}, None),
        ([], None),
        ("{", None),
    ],
)
def test_the_embedding_says_what_the_vocabulary_is(tmp_path: Path, config: Any, size: int | None) -> None:
    text = config if isinstance(config, str) else json.dumps(config)
    (tmp_path / "config.json").write_text(text)
    assert vocabulary_of(tmp_path) == size
    assert vocabulary_of(tmp_path / "none") is None
