"""`slime-events show`: show a run, or one step, group, sample, weight version, trace or moment, from its log."""

import argparse
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from schemas.doc import doc
from schemas.errors import InvalidValue
from slime_events.analysis.views.read_records import (
    read_group_view,
    read_sample_view,
    read_step_view,
    read_version_view,
)
from slime_events.app.cli.commands.show_sample import TOKENS, group_text, sample_text
from slime_events.app.cli.commands.show_step import step_text, version_text
from slime_events.app.cli.render.text import json_text
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.core.tokens.trajectory import Fetch
from slime_events.model.json_values import plain
from slime_events.model.lookup import Lookup
from storage.log import Readable


class View(NamedTuple):
    """A view as JSON values and as text."""

    facts: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """The part of a run to show; with nothing set, the run itself."""

    step: int | None = None
    group: str | None = None
    sample: str | None = None
    version: int | None = None
    tokens: Annotated[int, doc("Rows of the token table, 0 for all")] = TOKENS


async def view_of(
    log: Readable,
    question: Question,
    fetch: Fetch,
    folder: RunFolder | None = None,
    *,
    launched: bool | None = None,
    every_step: bool = True,
) -> View:
    """Return the view that answers a question. Raises RunNotFound with the nearest names.

    launched: whether the run's launcher is running; None if unknown. every_step: read the whole log for a run's facts,
    so that they have all steps; else they start from the launcher's snapshot and have the newest steps.
    """
    if question.sample is not None:
        weights = None if folder is None else folder.weights
        sample = await read_sample_view(log, question.sample, fetch, weights)
        return View(plain(sample), sample_text(sample, question.tokens))
    if question.group is not None:
        group = await read_group_view(log, question.group)
        return View(plain(group), group_text(group))
    if question.step is not None:
        step = await read_step_view(log, question.step)
        return View(plain(step), step_text(step))
    if question.version is not None:
        version = await read_version_view(log, question.version)
        return View(plain(version), version_text(version))
    # Imported here: to import this code takes longer than a look-up.
    from slime_events.analysis.views.read_run import read_run_view
    from slime_events.app.cli.commands.show_run import run_text

    run = await read_run_view(log, folder, launched=launched, every_step=every_step)
    return View(plain(run), run_text(run, folder))


async def trace_text(log: Readable, group: str) -> str:
    """Return the spans of one group's trace as a tree. Raises RunNotFound for an unknown group."""
    from slime_events.core.telemetry.event_spans import span_of
    from slime_events.core.telemetry.span import trace_id
    from slime_events.core.telemetry.span_tree import render, trace_of

    trace = trace_id(log.run, await Lookup(log).group_id(group))
    spans = [span_of(recorded.envelope) async for recorded in log.read()]
    return render(trace_of([span for span in spans if span is not None], trace))


async def run(arguments: argparse.Namespace) -> int:
    """Print the view."""
    others = (arguments.group, arguments.sample, arguments.version, arguments.trace, arguments.verify or None)
    if arguments.at is not None and any(other is not None for other in others):
        raise InvalidValue("--at shows the whole run at one position: leave out --group, --sample, --version, ...")
    if arguments.diff is not None and arguments.at is None:
        raise InvalidValue("--diff needs --at POS: it compares two positions")
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        text = await _text(arguments, opened)
    print(text)
    return 0


async def _text(arguments: argparse.Namespace, opened: OpenedRun) -> str:
    if arguments.verify:
        from slime_events.model.verify import verify

        return str(await verify(opened.log))
    if arguments.trace is not None:
        return await trace_text(opened.log, arguments.trace)
    if arguments.at is not None:
        from slime_events.app.cli.commands.show_at import moment_facts

        facts, text = await moment_facts(opened, arguments.at, arguments.step or 0, arguments.diff)
    else:
        question = Question(arguments.step, arguments.group, arguments.sample, arguments.version, arguments.tokens)
        launched = None
        if opened.folder is not None and question == Question(tokens=question.tokens):
            from slime_events.app.launch.run_status import is_launched

            launched = await is_launched(opened.folder, opened.log)
        facts, text = await view_of(
            opened.log, question, opened.fetch, opened.folder, launched=launched, every_step=arguments.json
        )
    return json_text(facts).rstrip() if arguments.json else text
