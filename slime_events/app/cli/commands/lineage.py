"""`slime-events lineage`: what a weight version was made of, down to the lines of its prompts, and what became of a
sample, up to the versions that come of it. Across the joins of branches, and from a live run, a finished one or an
archive.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from schemas.errors import InvalidValue
from slime_events.analysis.lineage.lineage import Asked, Kind, Lineage
from slime_events.analysis.lineage.picture import html, svg
from slime_events.analysis.lineage.resolve import NEWEST, lineage, to_json
from slime_events.app.cli.out_file import new_file
from slime_events.app.cli.render.lineage_text import lineage_text
from slime_events.app.cli.run_argument import RunParser
from slime_events.core.run.run_reader import open_run

FORMATS: dict[str, Callable[[Lineage], str]] = {
    "text": lineage_text,
    "json": lambda answer: to_json(answer).decode(),
    "svg": svg,
    "html": lambda answer: html(answer, lineage_text(answer)),
}


def main(argv: Sequence[str] = ()) -> int:
    """Print the answer, or write it to --out. Errors are raised."""
    said = _parser().parse_args(argv)
    shape = said.format or _shape_of(said.out)
    answer = asyncio.run(_answer(said))
    shown = FORMATS[shape](answer)
    if said.out is None:
        sys.stdout.write(shown if shown.endswith("\n") else shown + "\n")
    else:
        with new_file(said.out) as file:
            file.write(shown.encode())
        sys.stdout.write(f"{said.out}: {len(answer.steps)} steps, {len(answer.samples)} samples\n")
    return 0


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


def _parser() -> argparse.ArgumentParser:
    parser = RunParser(prog="slime-events lineage", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--version", type=int, metavar="V", help="of these weights [the newest]")
    what.add_argument("--step", type=int, metavar="N", help="of one training step, from 0")
    what.add_argument("--sample", metavar="S", help="of one rollout")
    what.add_argument("--group", metavar="G", help="of one prompt and its samples")
    what.add_argument("--source", metavar="FILE[:LINE]", help="of a prompt file or a line of it, or inbox[:KEY]")
    parser.add_argument(
        "--depth", type=int, default=1, metavar="N", help="steps back from a version or step, 0 for all [1]"
    )
    parser.add_argument("--format", choices=tuple(FORMATS), help="[that of --out, else text]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there")
    return parser
