"""`trace export`: the same spans as live, each once, in a stretch, for a receiver that counts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from schemas.errors import InvalidValue, StoreUnavailable
from slime_events.analysis.traces.export_spans import SpanExport, export_spans
from slime_events.app.cli.main import run_command
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.exporters import OtlpExporter
from slime_events.core.telemetry.span import Span
from slime_events.core.telemetry.telemetry import BATCH_SPANS, Telemetry, TracedLog
from storage.jetstream.log import JetStreamLog
from storage.log import Recorded, append_all
from storage.nats.server import NatsServer
from storage.open_log import NATS_FOLDER
from tests import made
from tests.cli import small_run
from tests.telemetry.collector import collecting
from tests.telemetry.span_files import read_spans, to_file


def records(copies: int = 0) -> list[Recorded]:
    """Return the small run, with further prompts if `copies` is given."""
    return small_run.recorded([*small_run.events(), *(made.submitted(f"more-{n}") for n in range(copies))])


def expected(share: float = 1.0, copies: int = 0) -> list[Span]:
    return [span for recorded in records(copies) if (span := span_of(recorded.envelope, share)) is not None]


class Kept:
    """An exporter that keeps what it gets, in batches. takes: batches that it takes."""

    def __init__(self, takes: int = 1000) -> None:
        self.batches: list[list[Span]] = []
        self._takes = takes

    def export(self, spans: Sequence[Span]) -> bool:
        if len(self.batches) >= self._takes:
            return False
        self.batches.append(list(spans))
        return True

    @property
    def spans(self) -> list[Span]:
        return [span for batch in self.batches for span in batch]


class Full(Kept):
    """An exporter to a full disk."""

    def export(self, spans: Sequence[Span]) -> bool:
        raise OSError("full")


async def exported(exporter: Kept, copies: int = 0, **stretch: float) -> SpanExport:
    log = await made.log(*(recorded.envelope.event for recorded in records(copies)), run=small_run.RUN)
    return await export_spans(log, exporter, "there", **stretch)  # type: ignore[arg-type]


def ids(spans: Sequence[Span]) -> list[tuple[int, int]]:
    return [(span.trace, span.span) for span in spans]


async def test_every_event_gives_its_span_once() -> None:
    kept = Kept()
    done = await exported(kept, copies=2 * BATCH_SPANS)
    assert ids(kept.spans) == ids(expected(copies=2 * BATCH_SPANS))
    assert max(Counter(ids(kept.spans)).values()) == 1
    assert (done.spans, done.traces) == (len(kept.spans), len({span.trace for span in kept.spans}))
    assert max(map(len, kept.batches)) <= BATCH_SPANS


async def test_stretches_have_all_spans_of_the_whole() -> None:
    whole, first, second, beyond = Kept(), Kept(), Kept(), Kept()
    last = (await exported(whole)).last
    await exported(first, last=20)
    await exported(second, first=21)
    assert ids(whole.spans) == ids(first.spans) + ids(second.spans)
    assert (await exported(beyond, first=last + 1)).spans == 0


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
async def test_a_share_keeps_what_live_processes_keep(share: float) -> None:
    kept = Kept()
    await exported(kept, copies=100, share=share)
    assert ids(kept.spans) == ids(expected(share, 100))


@pytest.mark.parametrize("exporter", [Kept(takes=1), Full()])
async def test_an_exporter_that_takes_no_more_is_an_error(exporter: Kept) -> None:
    with pytest.raises(StoreUnavailable):
        await exported(exporter, copies=2 * BATCH_SPANS)


def test_the_file_equals_what_live_processes_send(tmp_path: Path) -> None:
    live = to_file(tmp_path / "live" / "role-1.jsonl")
    assert live.record(recorded.envelope for recorded in records()) == len(expected())
    assert live.shutdown(60)
    url = made.archived(tmp_path / "archives", records())
    (tmp_path / "past").mkdir()
    assert run_command(["trace", "export", url, "--out", str(tmp_path / "past" / "all.jsonl")]) == 0
    assert read_spans(tmp_path / "past") == read_spans(tmp_path / "live")
    assert read_spans(tmp_path / "past").spans


async def test_a_run_that_was_killed_has_the_spans_of_what_it_stored(tmp_path: Path) -> None:
    """Its log has no end, and its server was killed too."""
    folder = tmp_path / "runs" / small_run.RUN
    server = await NatsServer.start(folder / NATS_FOLDER)
    log = await JetStreamLog.open(server.url, small_run.RUN)
    with collecting() as collector:
        live = TracedLog(log, telemetry := Telemetry.start("role", small_run.RUN, collector.endpoint, 1.0))
        await append_all(live, small_run.appends(list(small_run.events())))
        await log.close()
        os.kill(server.pid, signal.SIGKILL)
        assert await asyncio.to_thread(telemetry.shutdown, 60)
    (folder / "settings.toml").write_text(f'[run]\nrun = "{small_run.RUN}"\n')
    (tmp_path / "past").mkdir()
    words = ["trace", "export", str(folder), "--out", str(tmp_path / "past" / "all.jsonl")]
    assert await asyncio.to_thread(run_command, words) == 0
    assert sorted(ids(read_spans(tmp_path / "past").spans)) == sorted(ids(expected())) == sorted(collector.ids)


def test_a_receiver_gets_every_span(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = made.archived(tmp_path, records(), per_segment=10)
    with collecting() as collector:
        assert run_command(["trace", "export", url, "--otlp", collector.endpoint, "--json"]) == 0
    assert collector.ids == ids(expected())
    assert json.loads(capsys.readouterr().out)["spans"] == len(collector.ids)


def test_a_collector_that_is_away_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(OtlpExporter, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a terminal: Python prints what nobody handles
    url = made.archived(tmp_path, records())
    with pytest.raises(StoreUnavailable):
        run_command(["trace", "export", url, "--otlp", "http://127.0.0.1:9"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--otlp", "http://localhost:1", "--out", "x"],
        ["--otlp", "localhost:4318"],
        ["--out", "x", "--perfetto", "y"],
        ["--perfetto", "x", "--share", "0.5"],
        ["--perfetto", "nowhere/x"],
        ["--out", "x", "--share", "1.5"],
        ["--out", "x", "--from", "9", "--to", "8"],
        ["--out", "x", "--from", "soon"],
        ["--out", "nowhere/x"],
    ],
)
def test_impossible_arguments_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    url = made.archived(tmp_path / "archives", records())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValue):
        run_command(["trace", "export", url, *words])
    assert not Path("x").exists()


def test_a_timeline_for_perfetto_has_the_intervals_that_end_in_the_stretch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = made.archived(tmp_path / "archives", records())
    written = []
    for words in ([], ["--from", "step:0", "--to", "step:1"]):
        out = tmp_path / "timeline.json"
        assert run_command(["trace", "export", url, "--perfetto", str(out), "--json", *words]) == 0
        counted = json.loads(capsys.readouterr().out)
        events = [event for event in json.loads(out.read_text())["traceEvents"] if event["ph"] != "M"]
        assert counted["intervals"] == len(events) > 0
        assert all(counted["first"] <= event["args"]["position"] for event in events)
        written.append(len(events))
    assert written[1] < written[0]
