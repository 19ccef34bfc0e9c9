"""Test JSON of a model that names half of a character: its turn is recorded, answered and continued."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_apps.rollouts.agents.attach import Chains, arguments_of
from serve_apps.rollouts.agents.canonical import Call, assistant, canonical_json
from serve_apps.rollouts.agents.rendering import Rendering
from tests.simulation.parts import Letters

HALF = r'{"q": "\ud83d", "\udc80": [1, "\ude00"]}'
ANY = st.text(st.characters(codec=None, categories=None, exclude_categories=()), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = VALUES.map(json.dumps) | VALUES.map(lambda value: json.dumps(value, ensure_ascii=False)) | ANY


@settings(max_examples=300)
@given(ARGUMENTS, ANY, ANY, ANY)
def test_any_call_has_an_answer_a_digest_and_tokens(arguments: str, name: str, content: str, thought: str) -> None:
    message = assistant(content, thought, [Call("call_0", name, arguments)])
    assert msgspec.json.decode(msgspec.json.encode(message)) == message
    chain = Chains().of([{"role": "user", "content": content}, message])
    assert len(chain.links) == 2
    assert Chains().of([]).answered(message)
    Rendering(Letters()).ids(Rendering(Letters()).text([message])).tolist()


@given(ARGUMENTS)
def test_what_a_client_gives_back_is_what_was_said(arguments: str) -> None:
    """Read the answer's arguments and write them anew: the request continues the same turn."""
    message = assistant(calls=[Call("call_0", "f", arguments)])
    given_back = assistant(calls=[Call("call_1", "f", canonical_json(arguments))])
    start = [{"role": "user", "content": "go"}]
    assert Chains().of([*start, message]).links == Chains().of([*start, given_back]).links


def test_half_a_character_becomes_a_replacement() -> None:
    assert arguments_of({"arguments": HALF}) == {"q": "\ufffd", "\ufffd": [1, "\ufffd"]}
    assert json.loads(canonical_json(HALF)) == {"q": "\ufffd", "\ufffd": [1, "\ufffd"]}


@pytest.mark.parametrize(
    "value", [10**400, "[" * 100_000, {"deep": "[" * 3000 + "]" * 3000}, '{"a": 1' + "0" * 5000 + "}"]
)
def test_a_digest_of_anything(value: Any) -> None:
    given_arguments = value if isinstance(value, str) else json.dumps(value) if not isinstance(value, int) else value
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": given_arguments}}]}
    assert Chains().of([message]).links
