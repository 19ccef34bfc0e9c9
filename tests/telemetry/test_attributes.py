"""The registry of attributes has what spans have, by the names of OpenTelemetry's conventions."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, messaging_attributes

from slime_events.core.telemetry.attributes import (
    ATTRIBUTES,
    FLAG,
    METRIC,
    NUMBER,
    STANDARD,
    TEXT,
    TEXTS,
    WHOLE,
    WHOLES,
    SpanAttribute,
)
from tests.telemetry.test_event_spans import agent_story, golden_spans, spans_of, story
from tools.attributes_page import document, is_standard

BY_NAME = {attribute.name: attribute for attribute in ATTRIBUTES}
CONVENTIONS = {"gen_ai": gen_ai_attributes, "messaging": messaging_attributes}


def registered(name: str) -> SpanAttribute:
    return BY_NAME[METRIC if name.startswith(METRIC) else name]


def type_of(value: Any) -> str:
    """Return the registry's name of a value's type."""
    if isinstance(value, list | tuple):
        return TEXTS if any(isinstance(item, str) for item in value) else WHOLES
    return {bool: FLAG, int: WHOLE, float: NUMBER}.get(type(value), TEXT)


def test_spans_have_what_is_registered_and_nothing_else() -> None:
    used = defaultdict[str, set[tuple[str, str]]](set)
    for span in [*spans_of([*story(), *agent_story()]), *golden_spans()]:
        for name, value in span.attributes.items():
            attribute = registered(name)
            used[attribute.name].add((span.name, type_of(value)))
    assert set(used) == set(BY_NAME)
    for name, uses in used.items():
        attribute = BY_NAME[name]
        assert {kind for _, kind in uses} == {attribute.type}, name
        if not attribute.spans.startswith("all"):
            spans = {words.split()[0] for words in attribute.spans.split(", ")}
            assert {span for span, _ in uses} == spans, name


@pytest.mark.parametrize("attribute", [attribute for attribute in ATTRIBUTES if is_standard(attribute)])
def test_standard_names_are_those_of_the_pinned_package(attribute: SpanAttribute) -> None:
    convention = CONVENTIONS[attribute.name.partition(".")[0]]
    assert attribute.name in map(str, vars(convention).values())


def test_names_are_standard_or_ours() -> None:
    assert {attribute.name.partition(".")[0] for attribute in ATTRIBUTES} == {*STANDARD, "rl"}
    assert sorted(BY_NAME) == [attribute.name for attribute in ATTRIBUTES]


def test_a_name_is_no_namespace_of_another() -> None:
    """Back ends that nest attributes would lose one of the two."""
    assert [(a, b) for a in BY_NAME for b in BY_NAME if b.startswith(f"{a.removesuffix('.')}.") and a != b] == []


def test_the_page_is_up_to_date(pytestconfig: pytest.Config) -> None:
    page = pytestconfig.rootpath / "docs" / "span-attributes.md"
    assert page.read_text(encoding="utf-8") == document(), "python -m tools.attributes_page docs/span-attributes.md"
