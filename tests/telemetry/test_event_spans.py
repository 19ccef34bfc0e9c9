"""One prompt's trace leads from submit to activate, live and rebuilt from the log."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from schemas.codec import decode, encode
from schemas.envelope import Envelope, enclose
from schemas.event import Event
from schemas.groups import RejectionCause
from schemas.ids import sample_id, turn_group_id
from schemas.prompts import Source
from schemas.rewards import RewardFailureKind
from schemas.rollouts import FailureKind, RolloutCompleted, StopReason, Timings, WeightSpan
from schemas.sessions import SealReason, SessionSealed
from schemas.turns import AgentTurn, ToolCall, TurnRole
from slime_events.core.telemetry.event_spans import span_of, traceparent_of
from slime_events.core.telemetry.exporters import SpanConverter
from slime_events.core.telemetry.span import (
    Span,
    SpanContext,
    parse_traceparent,
    sampled,
    trace_id,
)
from slime_events.core.telemetry.span_place import ENDING, is_kept
from slime_events.core.telemetry.span_tree import SpanTree, render, trace_of
from tests import made
from tests.golden.log_file import FOLDER, read_records
from tests.telemetry.otlp_json import to_otlp_json
from tests.telemetry.span_files import read_spans, to_file

RUN = "demo"
EARLIER = "6aaf59f36d725a3172f68ff284223fe846d7ac50551663b4430559cf7f1980f6"
"""sha256 of the golden logs' spans, as made before turns, tools and sessions had spans."""


def completed(group: str, sample: str) -> RolloutCompleted:
    return made.completed(
        sample,
        group=group,
        length=7,
        prompt_length=3,
        text="4",
        spans=(WeightSpan(0, 7, 0),),
        digest="d",
        engine="e0",
        timings=Timings(queued=0.25, generating=1.5),
    )


def story() -> list[Envelope]:
    events: list[Event] = [made.started(code_version="0")]
    events.append(made.published(digest="d"))
    for group in ("g0", "g1", "g2"):
        events.append(made.submitted(group, text="2+2", tokens=[1, 2, 3], source=Source("f.jsonl")))
    for group in ("g0", "g1"):
        for i in range(2):
            sample = f"{group}-s{i}"
            events.append(completed(group, sample))
            events.append(made.assigned(sample, value=i, grader="math", grader_digest="x"))
        events.append(made.accepted(group, samples=(f"{group}-s0", f"{group}-s1"), rewards=(0.0, 1.0)))
    failed = FailureKind.ENGINE
    events.append(made.failed("g2-s0", failed, engine="e0"))
    events.append(completed("g2", "g2-s0"))
    wrong = RewardFailureKind.TIMEOUT
    events.append(made.reward_failed("g2-s0", wrong, message="slow", grader="math", grader_digest="x"))
    events.append(made.rejected("g2", RejectionCause.REWARD_FAILED, reason="a sample has no reward"))
    samples = ("g0-s0", "g0-s1", "g1-s0", "g1-s1")
    events.append(made.sealed(groups=("g0", "g1"), samples=samples, rewards=(0.0,) * 4, raw_rewards=(0, 1, 0, 1)))
    events.append(
        made.committed(
            weights_digest="d",
            optimizer_digest="o",
            samples=4,
            tokens=40,
            metrics={"loss": 0.5},
            seconds={"train": 0.5, "weights": 0.25},
        )
    )
    events.append(made.published(1, parent=0, digest="d"))
    for engine in ("e0", "e1"):
        events.append(made.activated(1, engine=engine, digest="d"))
    second = 1_000_000_000
    return [
        enclose(
            RUN, event, at=1_700_000_000 * second + i * second, producer="p", traceparent=traceparent_of(RUN, event)
        )
        for i, event in enumerate(events)
    ]


def golden_spans() -> list[Span]:
    """Return the spans of the golden logs."""
    logs = [FOLDER / f"v{version}.slimelog" for version in range(1, 7)]
    return spans_of(decode(record) for path in logs for record in read_records(path))


def spans_of(envelopes: Iterable[Envelope], share: float = 1.0) -> list[Span]:
    return [span for span in (span_of(envelope, share) for envelope in envelopes) if span is not None]


def agent_story() -> list[Envelope]:
    """Return the turns of two samples: of a generate function with a tool, and of an agent whose program fails."""
    agent = AgentTurn(key="k", dialect="chat", call=sample_id(turn_group_id("g0-s1", 0), 0))
    stop, versions = StopReason.STOP, (WeightSpan(0, 2, 3), WeightSpan(2, 3, 4))
    call, agent_kind = ToolCall("add", {"a": 2}), FailureKind.AGENT
    events: list[Event] = [
        made.submitted("g0"),
        made.turn("g0-s0", 0, length=3, spans=versions, stop=stop, seconds=0.5),
        made.turn("g0-s0", 1, role=TurnRole.TOOL, call=call, error="no b", seconds=0.25, overlapping=True),
        made.turn("g0-s0", 2, length=3, spans=versions, stop=stop, extends=0),
        completed("g0", "g0-s0"),
        completed(turn_group_id("g0-s1", 0), agent.call),
        made.turn("g0-s1", 0, length=1, spans=versions[:1], stop=stop, agent=agent, seconds=0.5),
        SessionSealed(sample="g0-s1", attempt=0, reason=SealReason.EXIT, gateway="w", exit_code=2, turns=1, seconds=4),
        made.failed("g0-s1", agent_kind, engine="w"),
    ]
    return [enclose(RUN, event, at=(i + 10) * 10**9, producer="p") for i, event in enumerate(events)]


def shape(tree: SpanTree) -> object:
    return (str(tree.span.name), tree.linked, sorted(map(shape, tree.children), key=str))


def test_a_prompts_trace_leads_to_the_engines_that_run_what_it_made() -> None:
    spans = spans_of(story())
    (tree,) = trace_of(spans, trace_id(RUN, "g0"))
    assert tree.span.name == "submit"
    sample = ("generate", False, [("grade", False, [])])
    activate = ("activate", False, [])
    batch = ("batch", True, [("train", False, [("publish", False, [activate, activate])])])
    assert shape(tree) == ("submit", False, [("decide", False, [batch]), sample, sample])
    (rejected,) = trace_of(spans, trace_id(RUN, "g2"))
    attempts = [("generate", False, []), ("generate", False, [("grade", False, [])])]
    assert shape(rejected) == ("submit", False, sorted([("decide", False, []), *attempts], key=str))
    assert len({span.context for span in spans}) == len(spans)


def test_turns_and_tools_are_parts_of_their_rollout() -> None:
    spans = spans_of(agent_story())
    tree, *failed = trace_of(spans, trace_id(RUN, "g0"))
    assert sorted(child.span.name for child in tree.children) == ["generate", "generate", "session"]
    parts = [child for child in tree.children if child.children]
    assert [[part.span.name for part in generate.children] for generate in parts] == [["turn", "tool", "turn"]]
    # The failed attempt gave no sample, so its turn has no parent.
    assert [(tree.span.name, tree.children) for tree in failed] == [("turn", ())]
    assert len({span.context for span in spans}) == len(spans)


def test_a_turn_says_what_it_did_and_nothing_of_its_content() -> None:
    by_key = {(span.name, span.attributes.get("rl.turn.index")): span for span in spans_of(agent_story())}
    first, tool, second = by_key["turn", 0], by_key["tool", 1], by_key["turn", 2]
    assert (tool.end_ns - tool.start_ns, tool.error) == (250_000_000, "no b")
    assert tool.attributes["gen_ai.tool.name"] == "add"
    assert tool.attributes["rl.turn.overlapping"] is True
    assert second.attributes["rl.weights.versions"] == [3, 4]
    assert (second.attributes["gen_ai.usage.output_tokens"], second.attributes["rl.turn.extends"]) == (3, 0)
    assert first.attributes["gen_ai.operation.name"] == "chat"
    session = by_key["session", None]
    assert (session.end_ns - session.start_ns, session.error) == (4_000_000_000, "exit code 2")


def test_failures_of_turns_and_sessions_are_kept() -> None:
    assert [span.name for span in spans_of(agent_story(), 1e-9)] == ["tool", "session", "generate"]
    stale = made.rejected("g0", RejectionCause.STALE, reason="old")
    assert span_of(enclose(RUN, stale, at=1, producer="p"), 1e-9) is None


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_an_agents_turn_links_to_the_generation_of_an_engine(share: float) -> None:
    whole, spans = spans_of(agent_story()), spans_of(agent_story(), share)
    (made_by,) = [span for span in whole if span.attributes.get("rl.sample.id") == "turn-0-g0-s1-s0"]
    for turn in [span for span in spans if "rl.turn.dialect" in span.attributes]:
        assert list(turn.links) == ([made_by.context] if sampled(made_by.trace, share) else [])
        assert share < 1 or turn.links


def test_spans_of_earlier_releases_are_the_same() -> None:
    """Ids, times and attributes of the golden logs. Collectors and files hold the spans of earlier releases."""
    earlier = [to_otlp_json(span) for span in golden_spans() if span.name not in ("turn", "tool", "session")]
    assert len(earlier) == 104
    assert hashlib.sha256(msgspec.json.encode(earlier, order="sorted")).hexdigest() == EARLIER


def test_spans_last_as_long_as_the_work_took_and_say_what_failed() -> None:
    by_event = {envelope.type: span_of(envelope) for envelope in story()}
    generate, train = by_event["rollout.completed"], by_event["step.committed"]
    assert generate is not None
    assert train is not None
    assert generate.end_ns - generate.start_ns == 1_500_000_000
    assert generate.attributes["gen_ai.usage.output_tokens"] == 7
    assert train.end_ns - train.start_ns == 750_000_000
    assert train.attributes["rl.metric.loss"] == 0.5
    for failure, message in (("rollout.failed", "engine: gone"), ("reward.failed", "timeout: slow")):
        span = by_event[failure]
        assert span is not None
        assert span.error == message
    assert by_event["run.started"] is None


def test_envelopes_carry_the_context_of_their_span() -> None:
    for envelope in story():
        span = span_of(envelope)
        assert parse_traceparent(envelope.traceparent) == (span.context if span else None)


def test_a_senders_own_trace_is_linked() -> None:
    sender = f"00-{5:032x}-{6:016x}-01"
    event = story()[2].event
    span = span_of(enclose(RUN, event, at=1, producer="p", traceparent=sender))
    assert span is not None
    assert [tuple(link) for link in span.links] == [(5, 6)]


def test_events_end_a_span_or_not_by_their_type_alone() -> None:
    """Processes hand over events of these types only."""
    for envelope in [*story(), *agent_story()]:
        assert (type(envelope.event) in ENDING) == is_kept(RUN, envelope.event, 1.0) == (span_of(envelope) is not None)
    assert {type(envelope.event) for envelope in [*story(), *agent_story()]} >= ENDING


FAILURES = frozenset({"rollout.failed", "reward.failed", "group.rejected"})


@pytest.mark.parametrize("share", [1e-9, 0.5])
def test_sampling_keeps_whole_group_traces_every_version_and_failures(share: float) -> None:
    for envelope in story():
        span, whole = span_of(envelope, share), span_of(envelope, 1.0)
        assert span_of(envelope, 0.0) is None
        assert is_kept(RUN, envelope.event, share) == (span is not None)
        assert not is_kept(RUN, envelope.event, 0.0)
        if whole is not None and "rl.group.id" in whole.attributes:
            assert (span is not None) == (sampled(whole.trace, share) or envelope.type in FAILURES)
            assert span in (None, whole)
            flag = traceparent_of(RUN, envelope.event, share)
            assert flag is not None
            assert flag.endswith("01" if span else "00")
        elif whole is not None:
            assert span is not None
            assert all(sampled(link.trace, share) for link in span.links)


def test_what_was_written_live_is_what_the_log_gives(tmp_path: Path) -> None:
    share = 0.6
    for role in ("conductor", "trainer"):
        telemetry = to_file(tmp_path / "traces" / f"{role}.jsonl", share)
        telemetry.record(story()[role == "trainer" :: 2])
        assert telemetry.shutdown()
    files = read_spans(tmp_path / "traces")
    assert files.dropped == 0
    rebuilt = sorted(spans_of(story(), share), key=lambda span: span.start_ns)
    assert [to_otlp_json(span) for span in files.spans] == [to_otlp_json(span) for span in rebuilt]


def test_numbers_are_the_same_live_and_from_the_log() -> None:
    """A trainer's metric or a reward may be an int, which is a float once it was read from the log."""
    whole = made.committed(metrics={"samples": 32, "loss": 0.5})
    envelopes = [*story(), *agent_story(), enclose(RUN, whole, at=1, producer="p")]
    again = [decode(encode(envelope)) for envelope in envelopes]
    assert list(map(to_otlp_json, spans_of(again))) == list(map(to_otlp_json, spans_of(envelopes)))


def from_sdk(span: ReadableSpan) -> Span:
    """Return a finished span of the SDK as ours."""
    return Span(
        name=span.name,
        trace=span.context.trace_id,
        span=span.context.span_id,
        start_ns=span.start_time,
        end_ns=span.end_time,
        parent=None if span.parent is None else span.parent.span_id,
        attributes=span.attributes,
        links=[SpanContext(link.context.trace_id, link.context.span_id) for link in span.links],
        error=span.status.description if span.status.status_code is StatusCode.ERROR else None,
    )


def test_spans_of_the_sdk_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever limits the environment sets: links and attributes beyond them would be lost in silence."""
    for limit in ("SPAN_ATTRIBUTE_COUNT", "SPAN_LINK_COUNT", "ATTRIBUTE_VALUE_LENGTH", "SPAN_ATTRIBUTE_VALUE_LENGTH"):
        monkeypatch.setenv(f"OTEL_{limit}_LIMIT", "1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    converter = SpanConverter({"service.name": "role"})
    spans = spans_of([*story(), *agent_story()])
    assert any(len(span.links) > 1 for span in spans)
    assert [to_otlp_json(from_sdk(converter.convert(span))) for span in spans] == list(map(to_otlp_json, spans))


def test_rendering() -> None:
    text = render(trace_of(spans_of(story()), trace_id(RUN, "g0")))
    lines = text.splitlines()
    assert next(line.split()[0] for line in lines) == "submit"
    assert "reward.value=1" in text
    assert any("⇢ batch" in line and "trace" in line for line in lines)
    assert sum("activate" in line for line in lines) == 2
    assert render(()) == "no spans"


def test_a_dropped_parent_makes_more_trees_and_hides_nothing() -> None:
    spans = [span for span in spans_of(story()) if span.name != "submit"]
    trees = trace_of(spans, trace_id(RUN, "g0"))
    assert sorted(tree.span.name for tree in trees) == ["decide", "generate", "generate"]
