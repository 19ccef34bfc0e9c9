"""`slime-events export`: a run's samples as slime's dumps, JSON lines, Parquet, or a Hugging Face data set."""

import argparse
import asyncio
import sys
import time

from schemas.errors import InvalidValue
from slime_events.analysis.export.export import Exported, Layout, export, make_writer
from slime_events.analysis.export.sample import Fate
from slime_events.core.run.run_reader import open_run


def run(arguments: argparse.Namespace) -> int:
    """Export. Errors are raised."""
    begun = time.perf_counter()
    done = asyncio.run(_export(arguments))
    counted = ", ".join(f"{count:,} {fate.value}" for fate, count in done.samples.items())
    shown = [done.files[0], *(["..."] if len(done.files) > 2 else []), *done.files[1:][-1:]]
    what = f"{'the prompts of ' if arguments.prompts else ''}{counted} samples"
    where = f"{len(done.files)} file{'s' if len(done.files) > 1 else ''}"
    sys.stdout.write(f"{what} in {where}, {time.perf_counter() - begun:.1f} s\n")
    sys.stdout.write("".join(f"  {path}\n" for path in shown))
    return 0


async def _export(arguments: argparse.Namespace) -> Exported:
    layout = Layout(arguments.to)
    fates = _fates(arguments.what) if arguments.what else _usual(layout)
    if arguments.prompts and layout is Layout.DUMP:
        raise InvalidValue("--prompts: slime's dumps hold samples; take jsonl or parquet for prompts")
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        writer = make_writer(layout, arguments.out, prompts=arguments.prompts)
        return await export(opened, writer, fates, _steps(arguments.steps))


def _fates(text: str) -> list[Fate]:
    try:
        return [Fate(name) for name in text.split(",")]
    except ValueError:
        raise InvalidValue(f"--what {text}: one or more of {', '.join(fate.value for fate in Fate)}") from None


def _usual(layout: Layout) -> list[Fate]:
    return list(Fate) if layout is Layout.HF else [Fate.TRAINED]


def _steps(text: str | None) -> range | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        raise InvalidValue(f"--steps {text}: a step as 7, or the first and last as 0-9") from None
