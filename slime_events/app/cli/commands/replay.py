"""`slime-events replay`: make the decisions of a run again. Exit code 0 if all are the same, else 1."""

import argparse
import sys
import time
from typing import Any

import msgspec

from schemas.batches import BatchSealed
from schemas.event import Event, type_of
from schemas.prompts import as_text
from slime_events.analysis.replay.equality import Verdict
from slime_events.analysis.replay.replay import replay
from slime_events.analysis.replay.report import Difference, ReplayReport
from slime_events.app.cli.commands.resume_run import with_flags
from slime_events.app.cli.render.text import fields, json_text, paragraphs, shorten, table
from slime_events.app.launch.run_record import changes
from slime_events.core.run.run_reader import open_run

WIDTH = 100


async def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 1 if a decision would differ."""
    begun, flags = time.perf_counter(), arguments.flags
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        own = opened.settings
        changed = changes(own, with_flags(own, flags).settings) if flags else {}  # derived settings included
        report = await replay(opened, changed, every=arguments.all, recorded_prompts=arguments.recorded_prompts)
    seconds = time.perf_counter() - begun
    if arguments.json:
        sys.stdout.write(json_text(report.json_values() | {"seconds": seconds}))
    else:
        print(f"{report_text(report, arguments.most, every=arguments.all)}\n")
        verdict = f"No decision would differ: all {report.compared:,} are the same again"
        if report.differences:
            verdict = f"{report.differences[0].position}: the first position at which a decision would differ"
        print(f"{verdict} ({report.events:,} events in {seconds:.1f} s)")
    return 0 if report.is_equal else 1


def report_text(report: ReplayReport, most: int, *, every: bool) -> str:
    """Return the decisions by type, then the first difference with its inputs, and with `every` a table of all."""
    kinds = [(name, f"{count:,}") for name, count in sorted(report.decisions.items())]
    parts = [fields([("run", report.run), *kinds, ("prompts", report.prompts)])]
    parts += map(difference_text, report.differences[:1])
    if every and report.differences:
        parts.append(table(("differences", "what"), [(count, kind) for kind, count in report.kinds().items()]))
        parts.append(_verdicts(report, most))
    return paragraphs(*parts)


def difference_text(difference: Difference) -> str:
    """Return a difference with the inputs of its decision."""
    inputs = dict(difference.inputs)
    groups, reward = inputs.pop("groups", []), inputs.pop("first_reward", None)
    figures = [
        (name, (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value))
        for name, value in inputs.items()
    ]
    lines = [
        str(difference),
        fields([("recorded", _event(difference.recorded)), ("now", _event(difference.decided))], "  "),
        fields([("decided on the log up to", difference.at), *figures], "  "),
    ]
    if reward is not None:
        lines.append(
            f"  first sample with another reward: {reward['sample']}, graded {reward['raw']:g}, "
            f"recorded {reward['recorded']:.6g}, now {reward['now']:.6g}"
        )
    return "\n".join([*lines, *map(_group, groups)])


def _event(event: Event | None) -> str:
    """Return an event in one or two lines: the main figures of a verdict or batch, the small fields of others."""
    if event is None:
        return "nothing"
    if isinstance(event, Verdict):
        figures = ", ".join(f"{name} {value:.4g}" for name, value in event.figures.items())
        reason = f", {event.reason}" if event.reason else ""
        return f"{type_of(event)} by filter {event.filter}{reason}" + (f" ({figures})" if figures else "")
    if isinstance(event, BatchSealed):
        return f"{type_of(event)} step {event.step}: {len(event.groups)} groups, digest {event.digest[:16]}"
    plain = msgspec.to_builtins(event)
    short = {name: value for name, value in plain.items() if name not in ("prompt", "tokens", "messages", "type")}
    return shorten(f"{type_of(event)} " + ", ".join(f"{name} {value}" for name, value in short.items()), WIDTH * 2)


def _group(group: dict[str, Any]) -> str:
    label, prompt = as_text(group["label"]) or None, shorten(group["prompt"], WIDTH)
    head = fields([("group", group["group"]), ("prompt", prompt), ("label", label)], "  ")
    rows = [tuple(sample.values()) for sample in group["samples"]]
    return f"{head}\n{table(('sample', 'phase', 'reward', 'tokens', 'oldest', 'newest'), rows, '    ')}"


def _verdicts(report: ReplayReport, most: int) -> str:
    verdicts, shown = report.verdicts, report.verdicts[: most or None]
    rows = [
        (verdict.position, getattr(verdict.recorded, "group", ""), type_of(verdict.recorded), type_of(verdict.decided),
         shorten(getattr(verdict.decided, "reason", "") or "", WIDTH // 2))
        for verdict in shown
        if verdict.decided is not None
    ]  # fmt: skip
    more = f"\n... and {len(verdicts) - len(shown):,} more (--most 0 shows all)" if len(verdicts) > len(shown) else ""
    return table(("position", "group", "recorded", "now", "reason"), rows) + more if verdicts else ""
