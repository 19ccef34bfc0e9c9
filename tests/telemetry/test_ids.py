"""Ids follow from names, and the share of traces that is kept from span."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from slime_events.core.telemetry import span


def test_ids_are_fixed_for_ever() -> None:
    """Written down: a change would part old logs from their traces."""
    context = span.SpanContext(span.trace_id("demo", "train-0-7"), span.span_id("demo", "submit/train-0-7"))
    assert span.format_traceparent(context, True) == "00-46d8898096861bea7ff971b6370f4364-03d45abfbd12cc59-01"


@given(st.text(), st.text(), st.booleans())
def test_traceparent_round_trip(run: str, group: str, flag: bool) -> None:
    context = span.SpanContext(span.trace_id(run, group), span.span_id(run, group))
    assert span.parse_traceparent(span.format_traceparent(context, flag)) == context


@pytest.mark.parametrize("text", [None, "", "00-xyz", f"00-{0:032x}-{1:016x}-01", f"00-{1:032x}-{0:016x}-01", "é" * 55])
def test_an_invalid_traceparent_is_none(text: str | None) -> None:
    assert span.parse_traceparent(text) is None


@given(st.integers(1, 2**128 - 1), st.floats(0, 1))
def test_the_share_is_opentelemetrys_own_rule(trace: int, share: float) -> None:
    decision = TraceIdRatioBased(share).should_sample(None, trace, "x").decision
    assert span.sampled(trace, share) == (decision is Decision.RECORD_AND_SAMPLE)


def test_the_kept_share_is_about_what_was_asked_for() -> None:
    kept = sum(span.sampled(span.trace_id("r", f"g{i}"), 0.3) for i in range(5000))
    assert 1350 < kept < 1650
