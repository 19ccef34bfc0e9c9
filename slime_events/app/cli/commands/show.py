"""`slime-events show`: a run, or a step, group, sample, weight version, trace or moment of it, out of its log."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import InvalidValue
from schemas.runs import RunResumed
from slime_events.analysis.model import History, read_history
from slime_events.analysis.model.progress import Progress
from slime_events.analysis.model.verify import verify
from slime_events.analysis.timetravel.difference import difference
from slime_events.analysis.timetravel.log_position import FORMS, AtPosition, parse_place
from slime_events.analysis.timetravel.lookahead import look_ahead
from slime_events.analysis.timetravel.moment import Moment
from slime_events.analysis.timetravel.timeline import Timeline
from slime_events.analysis.timetravel.view import facts_of
from slime_events.app.cli.commands.show_at import at_text
from slime_events.app.cli.commands.show_diff import diff_text
from slime_events.app.cli.commands.show_group import group_facts, group_text
from slime_events.app.cli.commands.show_run import run_facts, run_text
from slime_events.app.cli.commands.show_sample import TOKENS, Decode, sample_facts, sample_text
from slime_events.app.cli.commands.show_step import step_facts, step_text
from slime_events.app.cli.commands.show_version import version_facts, version_text
from slime_events.app.cli.render.event_line import event_line
from slime_events.app.cli.render.text import json_text
from slime_events.app.cli.run_argument import RunParser
from slime_events.app.launch.run_status import RunStatus, is_launched, read_status
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.core.state.run import RunPhase
from slime_events.core.trajectory import Fetch, read_trajectory
from slime_events.plugins.prompt_text import prompt_decoder, text_decoder
from storage.archive.index import cache_folder
from storage.log import Readable

_PLACES = ("--at", "--diff")


@dataclass(frozen=True, slots=True)
class Shown:
    """One view: as JSON values and as text."""

    facts: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a run; with nothing set, the run itself. tokens: rows of the token table, 0 for all."""

    step: int | None = None
    group: str | None = None
    sample: str | None = None
    version: int | None = None
    tokens: int = TOKENS


async def answer(
    log: Readable, question: Question, fetch: Fetch, folder: RunFolder | None = None, *, launched: bool | None = None
) -> Shown:
    """One pass over the log, and the view of what is asked. Raises RunNotFound with the nearest names.

    launched: whether the run's launcher is on; None where that cannot be known.
    """
    progress = Progress(log.run)
    whole = question == Question(tokens=question.tokens)
    history = await read_history(log, progress.apply if whole else None)
    if whole:
        facts = run_facts(history, progress, launched)
        return Shown(facts, run_text(facts, folder))
    if question.step is not None:
        facts = step_facts(history, history.find_step(question.step))
        return Shown(facts, step_text(facts))
    if question.version is not None:
        facts = version_facts(history, history.find_version(question.version))
        return Shown(facts, version_text(facts))
    if question.group is not None:
        facts = group_facts(history, history.find_group(question.group))
        return Shown(facts, group_text(facts))
    sample = history.find_sample(question.sample or "")
    made = await read_trajectory(log, sample.sample, fetch)
    decode_prompt = prompt_decoder(_checkpoint(history), fetch)
    facts = sample_facts(history, sample, made, token_decoder(history), decode_prompt)
    return Shown(facts, sample_text(facts, question.tokens))


def token_decoder(history: History) -> Decode | None:
    """Token texts by the run's own tokenizer file; None where it has gone."""
    decode = text_decoder(_checkpoint(history))
    return None if decode is None else lambda token: decode([token])


def _checkpoint(history: History) -> str | None:
    return (history.settings.get("engine") or {}).get("hf_checkpoint")


async def trace_text(log: Readable, traces: Path | None, group: str) -> str:
    """The spans of one group's trace as a tree: those exported to the folder `traces` (an archive has none),
    or else rebuilt from the log.

    Raises RunNotFound for an unknown group.
    """
    from slime_events.core.telemetry.event_spans import span_of
    from slime_events.core.telemetry.read import read_spans, render, trace_of
    from slime_events.core.telemetry.span import trace_id

    rebuilt = []
    history = await read_history(log, lambda recorded: rebuilt.append(span_of(recorded.envelope)))
    trace = trace_id(log.run, history.find_group(group).group)
    if traces is not None:
        files = read_spans(traces)
        if exported := trace_of(files.spans, trace):
            return render(exported) + (f"\n{files.dropped} spans were dropped" if files.dropped else "")
    trees = trace_of([span for span in rebuilt if span is not None], trace)
    why = (
        "an archive holds no spans"
        if traces is None
        else f"{traces} has no span of it (not sampled, or sent to an OTLP endpoint)"
    )
    return f"{render(trees)}\nrebuilt from the log: {why}"


async def moment_shown(opened: OpenedRun, at: str, step: int = 0, diff: str | None = None) -> Shown:
    """The run at one position, so many events on; or what differs there from the position `diff`.

    Raises InvalidValue for what is no position, RunNotFound where the run has none such.
    """
    timeline = await Timeline(opened.log, seek_folder(opened)).open(_say_that_it_indexes)
    moment = await timeline.seek(parse_place(at))
    if step:
        moment = await timeline.seek(AtPosition(min(max(moment.position + step, 1), timeline.end)))
    facts = facts_of(moment, timeline.end, await look_ahead(opened.log, moment))
    facts |= await _without_launcher(opened, moment, timeline.end)
    if diff is None:
        return Shown(facts, at_text(facts, event_line(moment.last) if moment.last else ""))
    other = await timeline.seek(parse_place(diff))
    other_facts = facts_of(other, timeline.end) | await _without_launcher(opened, other, timeline.end)
    facts = difference(facts, other_facts)
    return Shown(facts, diff_text(facts))


async def _without_launcher(opened: OpenedRun, moment: Moment, end: int) -> dict[str, Any]:
    """What is different in a moment after which no launcher said more: the log's last one, or before a resumption."""
    if moment.state.phase is not RunPhase.RUNNING:
        return {}
    if moment.position == end:
        status = await read_status(opened)
        return {} if status is RunStatus.RUNNING else {"phase": status.value, "waits_for": None}
    async with contextlib.aclosing(opened.log.read(moment.position + 1)) as read:  # type: ignore[type-var]
        resumed = isinstance((await anext(read)).envelope.event, RunResumed)
    return {"phase": RunStatus.KILLED.value, "waits_for": None} if resumed else {}


def seek_folder(opened: OpenedRun) -> Path:
    """Where the seek index of a run is kept: beside it, or in this user's cache for an archive."""
    if opened.folder is not None:
        return opened.folder.seek
    return cache_folder() / "slime-events" / "seek" / hashlib.sha256(opened.where.encode()).hexdigest()[:24]


def _say_that_it_indexes(events: int) -> None:
    sys.stderr.write(f"reading {events:,} events once, so that every position can be entered at once\n")


def main(argv: Sequence[str] = ()) -> int:
    """Print what is asked. Errors are raised."""
    said = _parser().parse_args(list(_joined(argv)))
    others = (said.group, said.sample, said.version, said.trace, said.verify or None)
    if said.at is not None and any(other is not None for other in others):
        raise InvalidValue("--at shows the whole run at one position: leave out --group, --sample, --version, ...")
    if said.diff is not None and said.at is None:
        raise InvalidValue("--diff compares with another position: say --at POS too")
    sys.stdout.write(asyncio.run(_show(said)) + "\n")
    return 0


def _joined(argv: Sequence[str]) -> Iterator[str]:
    """`--at -90s` as one word: else argparse takes -90s for an option."""
    words = iter(argv)
    for word in words:
        value = next(words, None) if word in _PLACES else None
        yield word if value is None else f"{word}={value}"


async def _show(said: argparse.Namespace) -> str:
    async with open_run(said.run, said.runs_dir) as opened:
        if said.verify:
            return str(await verify(opened.log))
        if said.trace is not None:
            return await trace_text(opened.log, opened.folder.traces if opened.folder else None, said.trace)
        if said.at is not None:
            shown = await moment_shown(opened, said.at, said.step or 0, said.diff)
        else:
            question = Question(said.step, said.group, said.sample, said.version, said.tokens)
            launched = None if opened.folder is None else await is_launched(opened.folder, opened.log)
            shown = await answer(opened.log, question, opened.fetch, opened.folder, launched=launched)
    return json_text(shown.facts).rstrip() if said.json else shown.text


def _parser() -> argparse.ArgumentParser:
    parser = RunParser(
        prog="slime-events show", description=__doc__, epilog="Ids may be cut short where no other begins like that."
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--step", type=int, metavar="N",
        help="one step, from 0: batch, samples, metrics, digests; with --at: so many events on (-1: back)",
    )  # fmt: skip
    what.add_argument("--group", metavar="G", help="one group: prompt, samples, filter decision, fate")
    what.add_argument("--sample", metavar="S", help="one rollout: tokens, log-probs, versions, reward, fate")
    what.add_argument("--version", type=int, metavar="V", help="one set of weights: origin, folder, engines, evals")
    what.add_argument("--trace", metavar="G", help="the spans of one group, from submit to activate")
    what.add_argument(
        "--verify", action="store_true", help="fold the log from position 0 and compare with how the live run ended"
    )
    parser.add_argument("--at", metavar="POS", help=f"the whole system at a position: {FORMS}")
    parser.add_argument("--diff", metavar="POS", help="with --at: what differs between the two positions")
    parser.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help=f"token rows, 0 for all [{TOKENS}]")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    return parser
