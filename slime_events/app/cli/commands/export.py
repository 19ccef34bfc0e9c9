"""`slime-events export`: a run's samples as slime's dumps, JSON lines, Parquet, or a Hugging Face data set."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from schemas.errors import InvalidValue
from slime_events.analysis.export.export import Exported, Layout, export, make_writer
from slime_events.analysis.export.sample import Fate
from slime_events.app.cli.run_argument import RunParser
from slime_events.core.run.run_reader import open_run

EPILOG = """\
--out is a file (for debug-rollout a template, as dumps/{rollout_id}.pt; for hf a folder), on any fsspec URL.
debug-rollout   one torch file a step, as slime's --save-debug-rollout-data writes; evaluations as eval_<version>
jsonl, parquet  one row a sample; with --prompts one a prompt, as --prompt-data reads it
hf              shards and a card that datasets.load_dataset(FOLDER) reads: train, rejected, test
"""


def main(argv: Sequence[str] = ()) -> int:
    """Export. Errors are raised."""
    said = _parser().parse_args(argv)
    begun = time.perf_counter()
    done = asyncio.run(_export(said))
    counted = ", ".join(f"{count:,} {fate.value}" for fate, count in done.samples.items())
    shown = [done.files[0], *(["..."] if len(done.files) > 2 else []), *done.files[1:][-1:]]
    what = f"{'the prompts of ' if said.prompts else ''}{counted} samples"
    where = f"{len(done.files)} file{'s' if len(done.files) > 1 else ''}"
    sys.stdout.write(f"{what} in {where}, {time.perf_counter() - begun:.1f} s\n")
    sys.stdout.write("".join(f"  {path}\n" for path in shown))
    return 0


async def _export(said: argparse.Namespace) -> Exported:
    layout = Layout(said.to)
    fates = _fates(said.what) if said.what else _usual(layout)
    if said.prompts and layout is Layout.DUMP:
        raise InvalidValue("--prompts: slime's dumps hold samples; take jsonl or parquet for prompts")
    async with open_run(said.run, said.runs_dir) as opened:
        writer = make_writer(layout, said.out, prompts=said.prompts)
        return await export(opened, writer, fates, _steps(said.steps))


def _fates(said: str) -> list[Fate]:
    try:
        return [Fate(name) for name in said.split(",")]
    except ValueError:
        raise InvalidValue(f"--what {said}: one or more of {', '.join(fate.value for fate in Fate)}") from None


def _usual(layout: Layout) -> list[Fate]:
    return list(Fate) if layout is Layout.HF else [Fate.TRAINED]


def _steps(said: str | None) -> range | None:
    if said is None:
        return None
    first, _, last = said.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        raise InvalidValue(f"--steps {said}: a step as 7, or the first and last as 0-9") from None


def _parser() -> argparse.ArgumentParser:
    parser = RunParser(
        prog="slime-events export",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--to", required=True, choices=[layout.value for layout in Layout], help="what is written")
    parser.add_argument("--out", required=True, metavar="PATH", help="where: see below")
    what = ", ".join(fate.value for fate in Fate)
    parser.add_argument("--what", metavar="FATE,...", help=f"samples that were {what} [trained; with hf all]")
    parser.add_argument("--steps", metavar="N-M", help="only those of these steps")
    parser.add_argument("--prompts", action="store_true", help="a row for each prompt in place of one for each sample")
    return parser
