"""Output of the launcher: `PlainView` prints lines, `LiveView` redraws a screen. `make_view` chooses one."""

import sys
import time
from collections.abc import Callable, Collection
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from schemas.evals import EvalCompleted, rates_text
from schemas.text import terminal_text
from slime_events.app.launch.sparkline import sparkline
from slime_events.app.terminal import raw_stream, safe_stream
from slime_events.core.state.run import RunState
from slime_events.model.progress import Progress, StepLine
from slime_events.model.session_figures import OpenSession

REFRESH_S = 0.25
"""Least seconds between two drawings: four drawings per second take well under one per cent of a core."""
CURVE = 40
"""Most steps, or means of neighbouring steps, in the reward curve."""
EVALS = 4
TURNS = 8
"""Most turns of agents whose ages are shown."""
BAR = 24

WaitsFor = Callable[[RunState], str]


class View:
    """Receives the progress of a run. This base class shows nothing. steps: number of steps of the run."""

    def note(self, text: str) -> None:
        """Show a message."""

    def begin(self, progress: Progress) -> None:
        """Take the past of a resumed run, which is not shown again."""

    def step(self, line: StepLine, progress: Progress, steps: int) -> None:
        """Show a committed step."""

    def tick(self, progress: Progress, steps: int) -> None:
        """Show the current state."""

    def close(self) -> None:
        """Finish the output."""


def step_text(line: StepLine, progress: Progress, steps: int) -> str:
    """Return a step in one line. The loss of a policy step has no meaning for a user, so it is not shown."""
    eta, loss = progress.eta_s(steps), 0.0 if "ppo_kl" in line.metrics else line.metrics.get("loss", 0.0)
    shown_loss = f"loss {loss:.3f}  " if loss else ""
    if "skipped" in line.metrics:  # a client's step: only the client knows its rewards and the number of steps
        norm, skipped = line.metrics["grad_norm"], "  skipped" if line.metrics["skipped"] else ""
        return f"step {line.step + 1}  {shown_loss}grad norm {norm:.3f}{skipped}  {line.seconds:.2f} s"
    return (
        f"step {line.step + 1}/{steps}  {shown_loss}reward {line.reward:.3f}  accepted {line.accepted_share:.0%}  "
        f"length {line.mean_length:.1f}  {line.tokens_per_s:.0f} tok/s  staleness {line.staleness}  "
        f"{line.seconds:.2f} s  trainer idle {line.idle:.0%}" + (f"  ETA {eta:.0f} s" if eta is not None else "")
    )


class PlainView(View):
    """Writes a line for each note, step and evaluation to a stream."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self._out = out
        self._evals = 0

    def note(self, text: str) -> None:
        print(terminal_text(text), file=self._out, flush=True)

    def begin(self, progress: Progress) -> None:
        self._evals = len(progress.figures.evals)

    def step(self, line: StepLine, progress: Progress, steps: int) -> None:
        self.note(step_text(line, progress, steps))

    def tick(self, progress: Progress, steps: int) -> None:
        for done in progress.figures.evals[self._evals :]:
            made_by = f" (answers by {done.other_versions})" if done.other_versions else ""
            failed = f", {done.failed} failed" if done.failed else ""
            what = f"eval {done.dataset} of version {done.version}{made_by}"
            rates = f", {rates_text(done.pass_rates)}" if done.pass_rates else ""
            self.note(f"{what}: {done.mean:.3f} over {done.samples} samples{rates}{failed}")
        self._evals = len(progress.figures.evals)


class LiveView(View):
    """Draws the newest state, at most every REFRESH_S seconds. Notes stay above it as plain lines."""

    def __init__(self, out: TextIO = sys.stderr, waits_for: WaitsFor | None = None) -> None:
        self._console = Console(file=raw_stream(out), highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._waits_for = waits_for
        self._begun = time.monotonic()
        self._drawn = 0.0
        self._last: tuple[Progress, int] | None = None
        self._live.start()
        # `Live` has replaced the standard streams by its own, which colour text.
        sys.stdout, sys.stderr = map(safe_stream, (sys.stdout, sys.stderr))

    def note(self, text: str) -> None:
        self._console.print(_text(text), soft_wrap=True)  # a line break within a URL would make it useless

    def step(self, line: StepLine, progress: Progress, steps: int) -> None:
        self.tick(progress, steps)

    def tick(self, progress: Progress, steps: int) -> None:
        self._last = (progress, steps)
        if time.monotonic() - self._drawn >= REFRESH_S:
            self._draw()

    def close(self) -> None:
        """Draw the last state and leave it on the screen."""
        if self._live.is_started:
            self._draw()
            self._live.stop()

    def _draw(self) -> None:
        if self._last is None:
            return
        self._drawn = time.monotonic()
        picture = screen(*self._last, seconds=self._drawn - self._begun, waits_for=self._waits_for)
        self._live.update(picture, refresh=True)


def screen(progress: Progress, steps: int, *, seconds: float, waits_for: WaitsFor | None = None) -> Group:
    """Return the whole screen. seconds: time since the command began."""
    state = progress.state
    done = state.steps
    head = _text(f"{state.run}  {_bar(done, steps)}  step {done}/{steps}", style="bold")
    eta = progress.eta_s(steps) if done < steps else None
    head.append(f"  {_time(seconds)}" + (f", {_time(eta)} to go" if eta is not None else ""), style="dim")
    parts: list[Text | Table] = [head]
    steps_shown = progress.figures.steps
    of_client = bool(steps_shown) and "skipped" in steps_shown[-1].metrics  # only the client knows its rewards
    if (rewards := progress.figures.rewards) and not of_client:
        curve = f"reward {rewards[-1]:.3f}  {sparkline(rewards, CURVE)}  from {rewards[0]:.3f}"
        parts.append(Text(curve, style="green"))
    parts.append(_figures(progress))
    if progress.figures.evals:
        parts.append(_text("evals  " + "  ".join(map(_eval, progress.figures.evals[-EVALS:]))))
    if (sessions := progress.figures.sessions) and done < steps:
        parts.append(Text(_agents(sessions.values(), time.time_ns())))
    if waits_for is not None and done < steps:
        parts.append(_text(f"waits for {waits_for(state)}", style="dim"))
    return Group(*parts)


def _text(text: str, style: str = "") -> Text:
    """Escape text for a terminal: names of runs, data sets and models may contain control characters."""
    return Text(terminal_text(text), style=style)


def _eval(done: EvalCompleted) -> str:
    failed = f" ({done.failed} of {done.samples} failed)" if done.failed else ""
    made_by = f" by {done.other_versions}" if done.other_versions else ""
    rates = f" ({rates_text(done.pass_rates)})" if done.pass_rates else ""
    return f"{done.dataset} v{done.version}{made_by} {done.mean:.3f}{rates}{failed}"


def _agents(sessions: Collection[OpenSession], now: int) -> str:
    """Return open sessions and their open turns, with the ages of the oldest. now: UTC nanoseconds."""
    opened = [session.opened_at for session in sessions]
    begun = sorted(at for session in sessions for at in session.turns.values())
    ages = "  ".join(_time(max(0, now - at) / 1e9) for at in begun[:TURNS]) + (" ..." if len(begun) > TURNS else "")
    turns = f"  turns under way {len(begun)}, for {ages}" if begun else ""
    return f"agents  sessions open {len(opened)}, the oldest for {_time(max(0, now - min(opened)) / 1e9)}{turns}"


def _figures(progress: Progress) -> Table:
    state, counts = progress.state, progress.state.counts
    decided = counts.groups_accepted + counts.groups_rejected
    figures = [
        ("accepted", f"{counts.groups_accepted / decided:.0%}" if decided else "-"),
        ("in flight", str(progress.in_flight)),
        ("weights", f"v{state.version}" if state.version >= 0 else "-"),
    ]
    if progress.figures.steps:
        line = progress.figures.steps[-1]
        figures += [
            ("tok/s", f"{line.tokens_per_s:.0f}"),
            ("length", f"{line.mean_length:.1f}"),
            ("staleness", str(line.staleness)),
            ("trainer idle", f"{line.idle:.0%}"),
            ("s/step", f"{line.seconds:.2f}"),
        ]
    table = Table(*(Column(name, justify="right") for name, _ in figures), box=None, pad_edge=False, header_style="dim")
    table.add_row(*(value for _, value in figures))
    return table


def _bar(done: int, steps: int) -> str:
    full = BAR * done // steps if steps else 0
    return "━" * full + "─" * (BAR - full)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def make_view(plain: bool, waits_for: WaitsFor | None = None, out: TextIO | None = None) -> View:
    """Return a plain view with `plain` or without a terminal, else a live view. out: stderr by default."""
    out = out or sys.stderr
    watched = out.isatty() and sys.stdout.isatty()
    return LiveView(out, waits_for) if watched and not plain else PlainView(out)
