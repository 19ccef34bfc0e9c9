"""A line of a file is the span in OTLP's JSON encoding, byte for byte as one that was written apart."""

from __future__ import annotations

import enum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_events.core.telemetry.span import Attribute, Span, SpanContext
from slime_events.core.telemetry.span_lines import span_lines
from tests.telemetry.otlp_json import to_otlp_json
from tests.telemetry.span_files import from_otlp_json
from tests.telemetry.test_event_spans import agent_story, golden_spans, spans_of, story


class Word(enum.StrEnum):
    PERCENT = "100 %d\n"


class Number(enum.IntEnum):
    ONE = 1


ODD = ('"\\\n\r\x00\u2028 %d %(x)s %% {}', "é\U0001f600", "")
INT64S = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.text() | st.booleans() | INT64S | st.floats() | st.sampled_from([*ODD, Word.PERCENT, Number.ONE, True, 1])
VALUES = SCALARS | st.lists(st.text(), max_size=3) | st.lists(INT64S, max_size=3).map(tuple)
SPAN_IDS, TRACES = st.integers(1, 2**64 - 1), st.integers(1, 2**128 - 1)
SPANS = st.builds(
    Span,
    name=st.text(),
    trace=TRACES,
    span=SPAN_IDS,
    start_ns=st.integers(0, 2**64),
    end_ns=st.integers(0, 2**64),
    parent=st.none() | SPAN_IDS,
    attributes=st.dictionaries(st.text(), VALUES, max_size=5),
    links=st.lists(st.builds(SpanContext, TRACES, SPAN_IDS), max_size=2),
    error=st.none() | st.text(),
)


def apart(spans: list[Span]) -> bytes:
    return msgspec.json.Encoder().encode_lines([to_otlp_json(span) for span in spans])


@given(st.lists(SPANS, max_size=3))
def test_any_spans(spans: list[Span]) -> None:
    assert span_lines(spans) == apart(spans)


def test_spans_of_runs() -> None:
    spans = [*spans_of([*story(), *agent_story()]), *golden_spans()]
    assert span_lines(spans) == apart(spans)
    lines = span_lines(spans).splitlines()
    assert list(map(span_lines, ([from_otlp_json(msgspec.json.decode(line))] for line in lines))) == [
        line + b"\n" for line in lines
    ]


@pytest.mark.parametrize("values", [([1], [True], [1]), ([True], [1], [True]), (1, True, 1), (True, 1.0, 1)])
def test_equal_values_of_different_types_stay_apart(values: tuple[Attribute, ...]) -> None:
    spans = [Span(name="x", trace=1, span=1, start_ns=0, end_ns=0, attributes={"a": value}) for value in values]
    assert span_lines(spans) == apart(spans)
