"""Whatever a generate function leaves on its samples: JSON values come through, tokens of no model fail the rollout."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import PlugPointError
from serve_apps.rollouts.generate.custom import completions
from tests.generate.test_completion import WHOLE, completed, context, left, sample_of, shown


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_values_come_through_as_they_are(value: Any) -> None:
    assert shown(left(state=value)).state == value  # type: ignore[attr-defined]


@given(st.lists(st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=2), st.none()), max_size=4))
def test_tokens_that_are_none_of_the_models_fail_their_rollout(more: list[Any]) -> None:
    """Whatever a function leaves in `sample.tokens`: an added special token, a float, a number above 64 bits."""
    sample = sample_of(tokens=[*WHOLE, *more], response_length=4 + len(more))
    shared = msgspec.structs.replace(context(), vocabulary=264)
    if all(type(token) is int and 0 <= token < 264 for token in more):
        assert completed(sample, shared).length == 4 + len(more)
        return
    with pytest.raises(PlugPointError, match="tokens"):
        completions(sample, shared)
