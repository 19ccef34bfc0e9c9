"""`Branches`: the runs beside a run that go on from its versions, and which of theirs come of a version or a sample.

A run does not know who branched off from it, so its neighbours are asked: in the same folder of runs, or under the same
URL of archives. A run whose name the parent has, but not its weights, is a branch of another run of that name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from schemas.batches import BatchSealed
from schemas.errors import SlimeEventsError
from schemas.runs import Branched
from schemas.steps import StepCommitted
from schemas.subjects import about, of_type
from schemas.weights import WeightsPublished
from slime_events.analysis.model.ancestry import Run, Versions
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun, branched_of, is_archive, open_archive
from storage.archive.log import ArchivedLog
from storage.log import Readable
from storage.object_store import ObjectFolder


@dataclass(frozen=True, slots=True)
class Branch:
    """newest: of its versions. batches: of one that trains on its parent's rollouts, the step that each was in."""

    run: Run
    newest: int
    batches: Mapping[str, int] = field(default_factory=dict)

    @property
    def join(self) -> int:
        """The version that it goes on from."""
        return self.run.version or 0


@dataclass(frozen=True, slots=True)
class Branches:
    """found: each after its parent. notes: on neighbours that could not be looked into, a sentence each."""

    found: tuple[Branch, ...] = ()
    notes: tuple[str, ...] = ()

    def of_version(self, run: str, version: int) -> tuple[Versions, ...]:
        """Those that come of a version that `run` has made, or of one that they have in common."""
        return self._come_of({run: version})

    def of_sample(self, run: str, sample: str, into: int | None) -> tuple[Versions, ...]:
        """Those that come of a sample of `run`. into: the version there that it was trained into, if it was."""
        first = {} if into is None else {run: into}
        for branch in self.found:
            step = branch.batches.get(sample)
            if step is not None and branch.run.parent == run:
                first[branch.run.run] = step + 1
        return self._come_of(first)

    def _come_of(self, first: dict[str, int]) -> tuple[Versions, ...]:
        """first: by run, the first of its versions that does."""
        reached = dict(first)
        for branch in self.found:
            parents = reached.get(branch.run.parent or "")
            if branch.run.run not in reached and parents is not None and branch.join >= parents:
                reached[branch.run.run] = branch.join + 1
        return tuple(
            Versions(run=branch.run.run, first=reached[branch.run.run], last=branch.newest)
            for branch in self.found
            if branch.newest >= reached.get(branch.run.run, branch.newest + 1)
        )


async def find_branches(opened: OpenedRun) -> Branches:
    """Those of an opened run, and theirs. Whoever cannot be looked into is named in the notes."""
    logs: dict[str, Readable] = {opened.run: opened.log}
    joined: dict[str, tuple[str, Branched]] = {}
    notes: list[str] = []
    for place in await asyncio.to_thread(_beside, opened):
        try:
            log = await asyncio.to_thread(_archived, place)
            branched = await branched_of(log)
        except SlimeEventsError as error:
            notes.append(f"{place} may be a branch, and cannot be looked into: {str(error).splitlines()[0]}")
            continue
        if log.run not in logs and branched is not None:
            logs[log.run], joined[log.run] = log, (str(place), branched)
    found = [await _branch(logs[run], *joined[run]) async for run in _in_order(opened.run, logs, joined)]
    return Branches(tuple(found), tuple(notes))


def _beside(opened: OpenedRun) -> list[Path | str]:
    """Folders of other runs, or URLs of other archives."""
    if opened.folder is not None:
        own = opened.folder.path.resolve()
        runs = sorted(found.parent for found in own.parent.glob("*/settings.toml"))
        return [run for run in runs if run.resolve() != own]
    if not is_archive(opened.where):
        return []
    url, _, own_name = opened.where.rstrip("/").rpartition("/")
    return [f"{url}/{name}" for name in ObjectFolder(url).folders() if name != own_name]


def _archived(place: Path | str) -> ArchivedLog:
    """What was sealed of it by now, so that nobody starts a server for every run there is. Raises RunNotFound."""
    if isinstance(place, Path):
        folder = RunFolder(place.parent, place.name)
        place = f"{folder.archive_url()}/{folder.log_name()}"
    reader = open_archive(place)
    return ArchivedLog(reader, reader.run)


async def _in_order(
    root: str, logs: Mapping[str, Readable], joined: Mapping[str, tuple[str, Branched]]
) -> AsyncIterator[str]:
    """Those that come of `root`, each after its parent."""
    parents = [root]
    while parents:
        parent = parents.pop(0)
        for run, (_, branched) in joined.items():
            if branched.run == parent and await _digest(logs[parent], branched.version) == branched.weights_digest:
                parents.append(run)
                yield run


async def _branch(log: Readable, where: str, branched: Branched) -> Branch:
    run, batches = log.run, dict[str, int]()
    newest = await log.last(of_type(run, "step.committed"))
    if branched.follows:
        async for recorded in log.read(1, of_type(run, "batch.sealed")):
            batch = recorded.envelope.event
            if isinstance(batch, BatchSealed):
                batches |= dict.fromkeys(batch.samples, batch.step)
    committed = newest.envelope.event if newest else None
    fact = Run(
        run=run,
        where=where,
        parent=branched.run,
        version=branched.version,
        position=branched.position,
        follows=branched.follows,
    )
    return Branch(fact, committed.version if isinstance(committed, StepCommitted) else branched.version, batches)


async def _digest(log: Readable, version: int) -> str | None:
    """Of the weights that a run calls so."""
    for subject in (about(log.run, "weights", str(version)), about(log.run, "step", str(version - 1))):
        async for recorded in log.read(1, subject):
            event = recorded.envelope.event
            if isinstance(event, WeightsPublished):
                return event.digest
            if isinstance(event, StepCommitted):
                return event.weights_digest
    return None
