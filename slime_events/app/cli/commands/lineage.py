"""`slime-events lineage`: the ancestry of a weight version down to the lines of its prompts, and the weight versions
that descend from a sample.
"""

import argparse
import contextlib
import io
import sys

from schemas.errors import InvalidValue
from slime_events.analysis.lineage.lineage import Kind, Lineage, LineageQuery
from slime_events.analysis.lineage.resolve import NEWEST, lineage, to_json
from slime_events.app.cli.files import new_file
from slime_events.app.cli.render.lineage_text import lineage_text
from slime_events.app.cli.render.text import exact_json
from slime_events.core.run.run_reader import open_run

FORMATS = ("text", "json", "svg", "html")


async def run(arguments: argparse.Namespace) -> int:
    """Print the answer, or write it to --out."""
    out, suffix = arguments.out, arguments.out.suffix.removeprefix(".") if arguments.out else ""
    shape = arguments.format or (suffix if suffix in FORMATS else "text")
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        answer = await lineage(opened, _question(arguments))
    is_file = out is not None or shape != "text"
    with contextlib.redirect_stdout(io.StringIO() if is_file else sys.stdout):  # not cut to the terminal's width
        text = _shown(answer, shape)
    if out is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return 0
    with new_file(out) as file:
        file.write(text.encode())
    print(f"{out}: {len(answer.steps)} steps, {len(answer.samples)} samples")
    return 0


def _shown(answer: Lineage, shape: str) -> str:
    if shape == "text":
        return lineage_text(answer)
    if shape == "json":
        return exact_json(to_json(answer).decode())
    from slime_events.analysis.lineage.picture import html, svg  # only pictures need it

    return svg(answer) if shape == "svg" else html(answer, lineage_text(answer))


def _question(arguments: argparse.Namespace) -> LineageQuery:
    if arguments.depth < 0:
        raise InvalidValue(f"--depth {arguments.depth} is negative: give a number of steps, or 0 for all")
    for kind in Kind:
        if (value := getattr(arguments, kind.value)) is not None:
            return LineageQuery(kind=kind, value=str(value), depth=arguments.depth)
    return LineageQuery(kind=Kind.VERSION, value=NEWEST, depth=arguments.depth)
