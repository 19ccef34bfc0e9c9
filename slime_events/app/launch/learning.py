"""What a learner is to be: where it begins, what it drops and trains otherwise. Nothing is written yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from schemas.batches import BatchSealed
from schemas.errors import InvalidValue, RunNotFound
from schemas.subjects import of_type
from slime_events.analysis.model.branch_point import read_point
from slime_events.analysis.retrain.base import with_base
from slime_events.app.launch.branch_settings import branch_settings, check_branch
from slime_events.app.launch.learn import Beginning, make_batches
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder
from slime_events.core.run.run_reader import OpenedRun, branched_of
from slime_events.loop.learner.batches import Preview, preview
from slime_events.loop.learner.overrides import Overrides, read_overrides, write_overrides
from slime_events.loop.learner.settings import learner_settings, makes_other_weights
from storage.blobs import BlobStore


@dataclass(frozen=True, slots=True)
class Asked:
    """Of whoever wants a learner. version: that it begins with; None: the newest that nothing is changed before.

    follow: the parent to its end, not only to the end of its log. drop: SQL that gives samples or groups. changes: path
    of a changes file. runs_dir: None: the parent's. flags: over the parent's settings, with --run.
    """

    name: str
    version: int | None = None
    follow: bool = False
    drop: str | None = None
    changes: str | None = None
    runs_dir: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prospect:
    """parsed: settings and the notes on them. changes, outlook: what is trained otherwise. version: None where nothing
    is, so that there is nothing to train.
    """

    parsed: ParsedTrain
    changes: Overrides
    outlook: Preview
    version: int | None


async def look(parent: OpenedRun, asked: Asked) -> Prospect:
    """One pass over the parent's log with the changes that are asked for. Raises ConfigError, BadQuery, RunNotFound."""
    await _check_own_rollouts(parent)
    parsed = branch_settings(parent.settings, str(runs_dir(parent, asked)), (*asked.flags, "--run", asked.name))
    weights = parent.folder.weights if parent.folder else None
    moved = parsed.settings.trainer.hf_checkpoint != parent.settings.trainer.hf_checkpoint
    wanted = parsed.settings if moved else with_base(parsed.settings, weights)
    steps = await _steps(parent, wanted.rollout.num_rollout or 0, follow=asked.follow)
    own = learner_settings(parent.settings, wanted, steps=steps)
    changes = await _changes(parent, asked)
    before = await branched_of(parent.log)
    first = before.version if before else 0
    point = await read_point(parent.log, first, parent.where)
    outlook = await preview(parent.log.read(), make_batches(parent, own, point, changes))
    version = asked.version
    if version is None:
        version = first if makes_other_weights(parent.settings, own) else outlook.first
    elif outlook.first is not None and outlook.first < version:
        raise InvalidValue(
            f"--from {version}: the batch of step {outlook.first} changes, and version {version} was trained on it as "
            f"it was: begin with version {outlook.first} or before"
        )
    if version is not None:
        check_branch(parent.settings, own, version, fresh_optimizer=False)
    return Prospect(ParsedTrain(own, parsed.notes), changes, outlook, version)


async def begin(parent: OpenedRun, prospect: Prospect, folder: RunFolder) -> Beginning:
    """What the learner's first word says; its changes lie in its blob store then."""
    if prospect.version is None:
        raise ValueError("nothing is trained otherwise")
    settings = prospect.parsed.settings
    blobs = BlobStore(settings.run.blob_url or str(folder.blobs))
    kept = await blobs.put_async(write_overrides(prospect.changes)) if prospect.changes else None
    point = await read_point(parent.log, prospect.version, parent.where)
    branched = structs.replace(point, cursors={}, passed={}, follows=True, changes=kept)
    return Beginning(settings, branched)


def runs_dir(parent: OpenedRun, asked: Asked) -> Path:
    """Where the learner's folder is: beside its parent's, if nothing else is said."""
    return Path(asked.runs_dir or (parent.folder.path.parent if parent.folder else RUNS_DIR))


async def _check_own_rollouts(parent: OpenedRun) -> None:
    before = await branched_of(parent.log)
    if before is not None and before.follows:
        raise InvalidValue(
            f"run {parent.run} makes no rollouts, it learns from those of {before.run}: learn from {before.where}"
        )


async def _steps(parent: OpenedRun, most: int, *, follow: bool) -> int:
    if follow:
        return most
    last = await parent.log.last(of_type(parent.run, "batch.sealed"))
    if last is None or not isinstance(last.envelope.event, BatchSealed):
        raise RunNotFound(f"run {parent.run} has no batch yet: wait for its first, or follow it with --follow")
    return min(most, last.envelope.event.step + 1)


async def _changes(parent: OpenedRun, asked: Asked) -> Overrides:
    """The file's, and what the query drops. Raises InvalidValue for what the run has not made, BadQuery."""
    changes = Overrides()
    if asked.changes is not None:
        changes = read_overrides(_bytes(asked.changes), asked.changes)
        await _check_known(parent, changes)
    if asked.drop is not None:
        from slime_events.analysis.query import samples_where

        found = await samples_where(parent, asked.drop)
        if not found:
            raise InvalidValue(f"--drop gives no sample: look at it with `slime-events query {parent.where}`")
        changes = changes.also(found)
    return changes


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidValue(f"--changes {path} cannot be read: {error}") from error


async def _check_known(parent: OpenedRun, changes: Overrides) -> None:
    samples = set(changes.dropped) | changes.rewards.keys()
    groups = set(changes.dropped_groups) | changes.verdicts.keys()
    async for recorded in parent.log.read(1, of_type(parent.run, "rollout.completed")):
        samples.discard(recorded.envelope.event.entity())
    async for recorded in parent.log.read(1, of_type(parent.run, "prompt.submitted")):
        groups.discard(recorded.envelope.event.entity())
    if unknown := sorted(samples | groups):
        raise InvalidValue(
            f"run {parent.run} has no {_some(unknown)}: the changes are of another run, or of a part of it that is not "
            "there yet"
        )


def _some(names: Iterable[str]) -> str:
    first, *more = names
    return first if not more else f"{first} and {len(more)} more that are named"
