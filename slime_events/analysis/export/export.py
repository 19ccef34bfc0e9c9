"""`export`: the samples of an opened run into files."""

import contextlib
import enum
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field

from schemas.batches import BatchSealed
from schemas.errors import DataError
from schemas.subjects import of_type
from slime_events.analysis.export.sample import ExportedSample, Fate, prompts_of
from slime_events.analysis.export.samples import FollowedSamples, Samples
from slime_events.analysis.export.writers import DumpWriter, HfWriter, JsonlWriter, ParquetWriter, Writer
from slime_events.core.run.run_reader import OpenedRun, branched_of, open_parent
from slime_events.plugins.sample_view import prompt_decoder


class Layout(enum.StrEnum):
    """What is written: slime's dumps, lines of JSON, a Parquet file, or a folder that Hugging Face datasets reads."""

    DUMP = "debug-rollout"
    JSONL = "jsonl"
    PARQUET = "parquet"
    HF = "hf"


WRITERS: dict[Layout, type[Writer]] = {
    Layout.DUMP: DumpWriter,
    Layout.JSONL: JsonlWriter,
    Layout.PARQUET: ParquetWriter,
    Layout.HF: HfWriter,
}


@dataclass
class Exported:
    """files: in the order written. samples: how many, by what became of them."""

    files: list[str] = field(default_factory=list)
    samples: Counter[Fate] = field(default_factory=Counter)


def make_writer(layout: Layout, out: str, *, prompts: bool = False) -> Writer:
    """prompts: a row for each prompt, as --prompt-data reads it, in place of one for each sample.

    Raises InvalidValue for a path that cannot be, StoreUnavailable.
    """
    return WRITERS[layout](out, prompts_of if prompts else list)


async def export(opened: OpenedRun, writer: Writer, fates: Collection[Fate], steps: range | None = None) -> Exported:
    """Write all samples with these fates. steps: of those that were trained only these, and evaluations of these
    versions. Of a run that follows another the samples are that one's. Raises DataError where there are none,
    RunNotFound where the followed run has gone, StorageError for a torn log.
    """
    done = Exported()
    async with contextlib.aclosing(_samples_of(opened)) as read:
        async for some in read:
            for fate, of_one in itertools.groupby(some, lambda sample: sample.fate):
                exported = list(of_one)
                step = exported[0].step
                if fate in fates and (steps is None or step is None or step in steps):
                    writer.write(exported)
                    done.samples[fate] += len(exported)
    if not done.samples:
        raise DataError(f"run {opened.run} has no samples that are {' or '.join(sorted(fates))}: nothing was exported")
    writer.close()
    done.files = writer.files
    return done


async def _samples_of(opened: OpenedRun) -> AsyncGenerator[list[ExportedSample]]:
    """Samples whose fate one event decides, event by event."""
    branched = await branched_of(opened.log)
    decode = prompt_decoder(opened.settings.engine.hf_checkpoint, opened.fetch)
    followed = open_parent(branched) if branched is not None and branched.follows else None
    async with followed or contextlib.nullcontext(opened) as made_by:
        made = Samples(opened.run, made_by.fetch, decode)
        samples: Samples | FollowedSamples = made
        if followed is not None:
            batches = {
                event.step: event
                async for recorded in opened.log.read(1, of_type(opened.run, "batch.sealed"))
                if isinstance(event := recorded.envelope.event, BatchSealed)
            }
            samples = FollowedSamples(opened.run, made, batches)
        async for recorded in made_by.log.read():
            yield samples.apply(recorded.envelope.event, recorded.position)
