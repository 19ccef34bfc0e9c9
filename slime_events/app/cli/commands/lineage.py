"""`slime-events lineage`: what a weight version was made of, down to the lines of its prompts, and what became of a
sample, up to the versions that come of it. Across the joins of branches, and from a live run, a finished one or an
archive.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from schemas.errors import InvalidValue
from slime_events.analysis.lineage.lineage import Asked, Kind, Lineage
from slime_events.analysis.lineage.resolve import NEWEST, lineage, to_json
from slime_events.app.cli.files import new_file
from slime_events.app.cli.render.lineage_text import lineage_text
from slime_events.app.cli.render.text import plain_tables
from slime_events.core.run.run_reader import open_run

FORMATS = ("text", "json", "svg", "html")


def run(said: argparse.Namespace) -> int:
    """Print the answer, or write it to --out. Errors are raised."""
    shape = said.format or _shape_of(said.out)
    answer = asyncio.run(_answer(said))
    with plain_tables(said.out is not None or shape != "text"):
        shown = _shown(answer, shape)
    if said.out is None:
        sys.stdout.write(shown if shown.endswith("\n") else shown + "\n")
    else:
        with new_file(said.out) as file:
            file.write(shown.encode())
        sys.stdout.write(f"{said.out}: {len(answer.steps)} steps, {len(answer.samples)} samples\n")
    return 0


def _shown(answer: Lineage, shape: str) -> str:
    if shape == "text":
        return lineage_text(answer)
    if shape == "json":
        return to_json(answer).decode()
    from slime_events.analysis.lineage.picture import html, svg  # only what is drawn needs it

    return svg(answer) if shape == "svg" else html(answer, lineage_text(answer))


async def _answer(said: argparse.Namespace) -> Lineage:
    async with open_run(said.run, said.runs_dir) as opened:
        return await lineage(opened, _asked(said))


def _asked(said: argparse.Namespace) -> Asked:
    if said.depth < 0:
        raise InvalidValue(f"--depth {said.depth}: give a number of steps, or 0 for all")
    for kind in Kind:
        if (value := getattr(said, kind.value)) is not None:
            return Asked(kind=kind, value=str(value), depth=said.depth)
    return Asked(kind=Kind.VERSION, value=NEWEST, depth=said.depth)


def _shape_of(out: Path | None) -> str:
    suffix = "" if out is None else out.suffix.removeprefix(".")
    return suffix if suffix in FORMATS else "text"
