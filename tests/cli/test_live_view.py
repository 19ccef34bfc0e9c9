"""`LiveView`: what it shows, how seldom it draws, and when it gives way to plain lines."""

from __future__ import annotations

import io
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from schemas.evals import EvalCompleted
from slime_events.app.cli.commands.train import reached
from slime_events.app.launch import view as live_view
from slime_events.app.launch.sparkline import sparkline
from slime_events.app.launch.view import LiveView, PlainView, make_view, screen, step_text
from slime_events.model.progress import Progress, StepLine
from tests.cli.small_run import RUN, events, finished, recorded


def _progress(count: int | None = None) -> Progress:
    progress = Progress(RUN)
    for record in recorded(finished(events()))[:count]:
        progress.apply(record)
    return progress


def _shown(progress: Progress) -> str:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=False)
    console.print(screen(progress, 3, seconds=75.0, waits_for=lambda state: f"samples for step {state.next_step}"))
    return out.getvalue()


def test_the_figures() -> None:
    shown = _shown(_progress())
    for expected in (
        "step 2/3",
        "1:15",
        "to go",
        "reward 0.500",
        "80%",
        "staleness",
        "digits v2 0.750",
        "trainer idle",
    ):
        assert expected in shown
    assert "waits for samples for step 2" in shown


def test_the_weights_that_answered_stand_beside_the_mean_where_they_are_others() -> None:
    for newest, expected in ((2, ""), (3, "v2 to v3")):
        changes = {"oldest_version": 2, "newest_version": newest}
        events_ = [
            msgspec.structs.replace(event, **changes) if isinstance(event, EvalCompleted) else event
            for event in events()
        ]
        progress, out = Progress(RUN), io.StringIO()
        view = PlainView(out)
        for record in recorded(events_):
            progress.apply(record)
        view.tick(progress, 3)
        assert progress.figures.evals[-1].other_versions == expected
        for text in (_shown(progress), out.getvalue(), reached(progress.summary())):
            assert ("v2 to v3" in text) == bool(expected)


@pytest.mark.parametrize(
    ("metrics", "loss"), [({"loss": 5.58}, "loss 5.580"), ({"loss": 1e-9, "ppo_kl": 0.0}, ""), ({"loss": 0.0}, "")]
)
def test_a_loss_that_is_no_policy_loss_is_said(metrics: dict[str, float], loss: str) -> None:
    numbers = dict.fromkeys(("reward", "accepted_share", "mean_length", "tokens_per_s", "seconds", "idle"), 0.0)
    line = StepLine(step=0, version=1, staleness=0, metrics=metrics, **numbers)
    text = step_text(line, _progress(), 3)
    assert loss in text
    assert ("loss" in text) is bool(loss)


def test_what_of_an_evaluation_failed_is_said_beside_its_mean() -> None:
    events_ = [
        msgspec.structs.replace(event, failed=63, samples=128) if isinstance(event, EvalCompleted) else event
        for event in events()
    ]
    progress, out = Progress(RUN), io.StringIO()
    for record in recorded(events_):
        progress.apply(record)
    assert "63 of 128 failed" in _shown(progress)
    PlainView(out).tick(progress, 3)
    assert "128 samples, 63 failed" in out.getvalue()
    (last,) = progress.summary()["evals"]
    assert (last["samples"], last["failed"]) == (128, 63)
    assert "63 samples failed" in reached(progress.summary())
    assert "failed" not in _shown(_progress())


def test_before_the_first_step_it_says_what_it_waits_for() -> None:
    shown = _shown(_progress(2))
    assert "step 0/3" in shown
    assert "waits for" in shown


def test_it_draws_four_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    view, progress = LiveView(out), _progress()
    drawn = []
    monkeypatch.setattr(live_view, "screen", lambda *a, **k: drawn.append(1) or "")
    now = 1000.0
    monkeypatch.setattr(live_view, "time", SimpleNamespace(monotonic=lambda: now))
    for tick in range(160):
        now = 1000.0 + tick / 16
        view.tick(progress, 3)
    assert len(drawn) == 10 / live_view.REFRESH_S == 40
    view.close()
    view.close()
    assert len(drawn) == 41, "the last state stays"


def test_notes_stand_above_and_the_last_state_stays() -> None:
    out = io.StringIO()
    view = LiveView(out)
    view.note("starting [Ray]")
    view.tick(_progress(), 3)
    view.close()
    assert "starting [Ray]" in out.getvalue()
    assert "step 2/3" in out.getvalue()


def test_without_a_terminal_lines_are_written() -> None:
    assert isinstance(make_view(plain=False, out=io.StringIO()), PlainView)


@pytest.mark.parametrize(("values", "line"), [([], ""), ([1.0], "▁"), ([0, 1, 2, 7], "▁▂▃█"), ([3, 3], "▁▁")])
def test_sparkline(values: list[float], line: str) -> None:
    assert sparkline(values) == line


def test_a_long_sparkline_is_of_means() -> None:
    assert sparkline([float(n) for n in range(1000)], width=8) == "▁▂▃▄▅▆▇█"
