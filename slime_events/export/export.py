"""`export`: the samples of an opened run into files."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from schemas.errors import DataError
from slime_events.export.prompt import prompts_of
from slime_events.export.sample import ExportedSample, Fate
from slime_events.export.samples import Samples
from slime_events.export.writers import DumpWriter, HfWriter, JsonlWriter, ParquetWriter, Rows, Writer
from slime_events.opened_run import OpenedRun
from slime_events.prompt_text import prompt_decoder


class Layout(enum.StrEnum):
    """What is written: slime's dumps, lines of JSON, a Parquet file, or a folder that Hugging Face datasets reads."""

    DUMP = "debug-rollout"
    JSONL = "jsonl"
    PARQUET = "parquet"
    HF = "hf"


@dataclass
class Exported:
    """files: in the order written. samples: how many, by what became of them."""

    files: list[str] = field(default_factory=list)
    samples: Counter[Fate] = field(default_factory=Counter)


def make_writer(layout: Layout, out: str, *, prompts: bool = False) -> Writer:
    """prompts: a row for each prompt, as --prompt-data reads it, in place of one for each sample.

    Raises InvalidValue for a path that cannot be, StoreUnavailable.
    """
    rows: Rows = prompts_of if prompts else _samples
    match layout:
        case Layout.DUMP:
            return DumpWriter(out)
        case Layout.JSONL:
            return JsonlWriter(out, rows)
        case Layout.PARQUET:
            return ParquetWriter(out, rows)
        case Layout.HF:
            return HfWriter(out, rows)


async def export(opened: OpenedRun, writer: Writer, fates: Collection[Fate], steps: range | None = None) -> Exported:
    """Write all samples with these fates. steps: of those that were trained only these, and evaluations of these
    versions. Raises DataError where there are none, StorageError for a torn log.
    """
    decode = prompt_decoder(opened.settings.engine.hf_checkpoint, opened.fetch)
    samples, done = Samples(opened.run, opened.fetch, decode), Exported()
    async for recorded in opened.log.read():
        found = samples.apply(recorded.envelope.event, recorded.position)
        if found and _is_wanted(found[0], fates, steps):
            writer.write(found)
            done.samples[found[0].fate] += len(found)
    if not done.samples:
        raise DataError(f"run {opened.run} has no samples that are {' or '.join(sorted(fates))}: nothing was exported")
    writer.close()
    done.files = writer.files
    return done


def _is_wanted(sample: ExportedSample, fates: Collection[Fate], steps: range | None) -> bool:
    return sample.fate in fates and (steps is None or sample.step is None or sample.step in steps)


def _samples(samples: list[ExportedSample]) -> list[ExportedSample]:
    return samples
