"""`Branches`: the runs that branched off from a run, and which of their versions come of a version or a sample of it.

A run does not know its branches, so they are looked for among its neighbours: in the same folder of runs, or under the
same URL of archives. A branch whose first weights are not the run's own is a branch of another run of that name.
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
from schemas.subjects import of_type
from slime_events.analysis.model import folded
from slime_events.analysis.model.ancestry import JoinedRun, VersionRange
from slime_events.analysis.model.lookup import LogPart
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun, branched_of, is_archive, open_archive
from storage.archive.log import ArchivedLog
from storage.log import Readable
from storage.object_store import ObjectFolder


@dataclass(frozen=True, slots=True)
class Branch:
    """newest: its newest version. batches: where it is trained on its parent's rollouts, the step of each sample."""

    run: JoinedRun
    newest: int
    batches: Mapping[str, int] = field(default_factory=dict)

    @property
    def join(self) -> int:
        """The version that it goes on from."""
        return self.run.version or 0


@dataclass(frozen=True, slots=True)
class Branches:
    """known: each after its parent. notes: on neighbours that could not be looked into, a sentence each."""

    known: tuple[Branch, ...] = ()
    notes: tuple[str, ...] = ()

    def of_version(self, run: str, version: int) -> tuple[VersionRange, ...]:
        """Versions that come of one that `run` has made, or that they have in common."""
        return self._come_of({run: version})

    def of_sample(self, run: str, sample: str, into: int | None) -> tuple[VersionRange, ...]:
        """Versions that come of a sample of `run`. into: the version there that it was trained into, if it was."""
        first = {} if into is None else {run: into}
        for branch in self.known:
            step = branch.batches.get(sample)
            if step is not None and branch.run.parent == run:
                first[branch.run.run] = step + 1
        return self._come_of(first)

    def _come_of(self, first: dict[str, int]) -> tuple[VersionRange, ...]:
        """first: by run, its first version that does."""
        reached = dict(first)
        for branch in self.known:
            parents = reached.get(branch.run.parent or "")
            if branch.run.run not in reached and parents is not None and branch.join >= parents:
                reached[branch.run.run] = branch.join + 1
        return tuple(
            VersionRange(run=branch.run.run, first=reached[branch.run.run], last=branch.newest)
            for branch in self.known
            if branch.newest >= reached.get(branch.run.run, branch.newest + 1)
        )


async def find_branches(opened: OpenedRun) -> Branches:
    """Branches of an opened run, and theirs. A neighbour that cannot be looked into is named in the notes."""
    logs: dict[str, Readable] = {opened.run: opened.log}
    joined: dict[str, tuple[str, Branched]] = {}
    notes: list[str] = []
    for where in await asyncio.to_thread(_neighbours, opened):
        try:
            log = await asyncio.to_thread(_archived, where)
            branched = await branched_of(log)
        except SlimeEventsError as error:
            notes.append(f"{where} may be a branch, and cannot be looked into: {str(error).splitlines()[0]}")
            continue
        if log.run not in logs and branched is not None:
            logs[log.run], joined[log.run] = log, (str(where), branched)
    known = [await _branch(logs[run], *joined[run]) async for run in _in_order(opened.run, logs, joined)]
    return Branches(tuple(known), tuple(notes))


def _neighbours(opened: OpenedRun) -> list[Path | str]:
    """Folders of other runs, or URLs of other archives."""
    if opened.folder is not None:
        own = opened.folder.path.resolve()
        runs = sorted(settings.parent for settings in own.parent.glob("*/settings.toml"))
        return [run for run in runs if run.resolve() != own]
    if not is_archive(opened.where):
        return []
    url, _, own_name = opened.where.rstrip("/").rpartition("/")
    return [f"{url}/{name}" for name in ObjectFolder(url).folders() if name != own_name]


def _archived(where: Path | str) -> ArchivedLog:
    """What is archived of it by now: no server is started for a neighbour. Raises RunNotFound."""
    if isinstance(where, Path):
        folder = RunFolder(where.parent, where.name)
        where = f"{folder.archive_url()}/{folder.log_name()}"
    reader = open_archive(where)
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
    return Branch(
        JoinedRun.of(run, where, branched),
        committed.version if isinstance(committed, StepCommitted) else branched.version,
        batches,
    )


async def _digest(log: Readable, version: int) -> str | None:
    """Of the weights that a run calls so."""
    record = folded(log.run, await LogPart(log).last_events(versions=[version])).version(version)
    if record.published is not None:
        return record.published.event.digest
    return record.committed.event.weights_digest if record.committed else None
