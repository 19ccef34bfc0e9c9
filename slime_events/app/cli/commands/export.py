"""`slime-events export`: write samples as slime's dumps, JSON lines, Parquet or a data set; or weights of a version."""

import argparse
import time

from schemas.errors import InvalidValue
from slime_events.analysis.export.export import WEIGHTS, Layout, export, make_writer
from slime_events.analysis.export.sample import Fate
from slime_events.analysis.export.weights import export_weights
from slime_events.core.run.run_reader import open_run


async def run(arguments: argparse.Namespace) -> int:
    """Export, and print the paths of the files."""
    begun = time.perf_counter()
    if arguments.to == WEIGHTS:
        return await _weights(arguments, begun)
    if arguments.version is not None:
        raise InvalidValue("--version needs --to weights: samples are chosen by --steps")
    layout = Layout(arguments.to)
    fates = _fates(arguments.what, layout)
    if arguments.prompts and layout is Layout.DUMP:
        raise InvalidValue("--prompts needs --to jsonl or --to parquet: slime's dumps hold samples, not prompts")
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        writer = make_writer(layout, arguments.out, prompts=arguments.prompts)
        done = await export(opened, writer, fates, _steps(arguments.steps))
    counted = ", ".join(f"{count:,} {fate.value}" for fate, count in done.samples.items())
    what = f"{'the prompts of ' if arguments.prompts else ''}{counted} samples"
    where = f"{len(done.files)} file{'s' if len(done.files) > 1 else ''}"
    print(f"{what} in {where}, {time.perf_counter() - begun:.1f} s")
    first, *others = done.files
    for path in (first, *(["..."] if len(others) > 1 else []), *others[-1:]):
        print(f"  {path}")
    return 0


async def _weights(arguments: argparse.Namespace, begun: float) -> int:
    if arguments.version is None or arguments.what or arguments.steps or arguments.prompts:
        raise InvalidValue("--to weights needs --version N, and takes none of --what, --steps and --prompts")
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        written = await export_weights(opened, arguments.version, arguments.out)
    print(f"weight version {written.version}, {written.bytes / 1e6:,.1f} MB, digest {written.digest}, "
          f"{time.perf_counter() - begun:.1f} s")  # fmt: skip
    print(f"  {arguments.out}")
    return 0


def _fates(text: str | None, layout: Layout) -> list[Fate]:
    if not text:
        return list(Fate) if layout is Layout.HF else [Fate.TRAINED]
    try:
        return [Fate(name) for name in text.split(",")]
    except ValueError:
        fates = ", ".join(fate.value for fate in Fate)
        raise InvalidValue(f"--what {text} is wrong: give one or more of {fates}") from None


def _steps(text: str | None) -> range | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        raise InvalidValue(f"--steps {text} is wrong: give one step, such as 7, or a range, such as 0-9") from None
