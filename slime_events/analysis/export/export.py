"""`export`: writes the samples of an opened run to files."""

import contextlib
import enum
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field
from typing import Annotated

from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.errors import DataError
from schemas.subjects import of_type
from slime_events.analysis.export.sample import ExportedSample, Fate, prompts_of
from slime_events.analysis.export.samples import FollowedSamples, Samples
from slime_events.analysis.export.writers import DumpWriter, HfWriter, JsonlWriter, ParquetWriter, Writer
from slime_events.core.run.run_reader import OpenedRun, branched_of, open_parent
from slime_events.plugins.sample_view import prompt_decoder

WEIGHTS = "weights"
"""Output format of `export` for the weights of a version."""


class Layout(enum.StrEnum):
    """Layout of the output: slime's dumps, lines of JSON, a Parquet file, or a folder for Hugging Face datasets."""

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
    """Result of an export."""

    files: Annotated[list[str], doc("written files, in order")] = field(default_factory=list)
    samples: Annotated[Counter[Fate], doc("number of samples by fate")] = field(default_factory=Counter)


def make_writer(layout: Layout, out: str, *, prompts: bool = False) -> Writer:
    """Return a writer. prompts: write a row per prompt, as --prompt-data reads it, instead of one per sample.

    Raises InvalidValue for an impossible path, StoreUnavailable.
    """
    return WRITERS[layout](out, prompts_of if prompts else list)


async def export(opened: OpenedRun, writer: Writer, fates: Collection[Fate], steps: range | None = None) -> Exported:
    """Write all samples with these fates. steps: restrict trained samples to these steps, and evaluations to these
    versions. For a run that follows another, the samples come from that run.

    Raises DataError if there are no samples, RunNotFound if the followed run is gone, StorageError for a torn log.
    """
    done = Exported()
    async with contextlib.aclosing(_samples_of(opened)) as read:
        async for some in read:
            for fate, same in itertools.groupby(some, lambda sample: sample.fate):
                exported = list(same)
                step = exported[0].step
                if fate in fates and (steps is None or step is None or step in steps):
                    writer.write(exported)
                    done.samples[fate] += len(exported)
    if not done.samples:
        raise DataError(
            f"run {opened.run} has no samples that are {' or '.join(sorted(fates))}, so nothing was exported"
        )
    writer.close()
    done.files = writer.files
    return done


async def _samples_of(opened: OpenedRun) -> AsyncGenerator[list[ExportedSample]]:
    """Yield the samples whose fate one event decides, event by event."""
    branched = await branched_of(opened.log)
    decode = prompt_decoder(opened.settings.engine.hf_checkpoint, opened.fetch)
    followed = open_parent(branched) if branched is not None and branched.follows else None
    async with followed or contextlib.nullcontext(opened) as source:
        own = Samples(opened.run, source.fetch, decode)
        samples: Samples | FollowedSamples = own
        if followed is not None:
            batches = {
                event.step: event
                async for recorded in opened.log.read(1, of_type(opened.run, "batch.sealed"))
                if isinstance(event := recorded.envelope.event, BatchSealed)
            }
            samples = FollowedSamples(opened.run, own, batches)
        async for recorded in source.log.read():
            yield samples.apply(recorded.envelope.event, recorded.position)
