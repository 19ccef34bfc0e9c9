"""Read the view of a step, group, sample or weight version from a log, by look-ups of its events."""

from __future__ import annotations

from pathlib import Path

from schemas.ids import requested_sample
from slime_events.analysis.views.group import GroupView, view_group
from slime_events.analysis.views.sample import SampleView, view_sample
from slime_events.analysis.views.step import StepView, view_step
from slime_events.analysis.views.version import VersionView, view_version
from slime_events.core.tokens.trajectory import Fetch, Trajectories
from slime_events.core.training.batch_columns import BatchMasks
from slime_events.model.agent_session import read_sessions, sessions_of
from slime_events.model.lookup import LogPart, Lookup
from slime_events.plugins.sample_view import prompt_decoder, text_decoder, tokenizer_folder
from storage.log import Readable


async def read_step_view(log: Readable, step: int) -> StepView:
    """Read the view of a step. Raises RunNotFound, which names the steps of the run."""
    lookup = Lookup(log)
    return view_step(lookup.run, await lookup.step(step))


async def read_version_view(log: Readable, version: int) -> VersionView:
    """Read the view of a weight version. Raises RunNotFound, which names the versions of the run."""
    lookup = Lookup(log)
    return view_version(lookup.run, await lookup.version(version))


async def read_group_view(log: Readable, group: str) -> GroupView:
    """Read the view of a group, by its id, a unique prefix of it, or its producer's key.

    Raises RunNotFound, which names the nearest ids.
    """
    lookup = Lookup(log)
    record = await lookup.group(group)
    sessions = await read_sessions(LogPart(log), [requested_sample(member.sample) for member in record.members])
    return view_group(lookup.run, record, sessions)


async def read_sample_view(log: Readable, name: str, fetch: Fetch, weights: Path | None = None) -> SampleView:
    """Read the view of a sample, by its id or a unique prefix of it.

    fetch: returns an array's numbers. weights: folder of the run's versions, for a tokenizer that has gone from its
    place; None for an archive. Raises RunNotFound, which names the nearest ids.
    """
    lookup = Lookup(log)
    sample = await lookup.sample(name)
    trajectories = Trajectories(fetch)
    for recorded in lookup.events:
        trajectories.apply(recorded.envelope.event, recorded.position)
    await lookup.lifetime()
    checkpoint = tokenizer_folder((lookup.run.settings.get("engine") or {}).get("hf_checkpoint"), weights)
    decode = text_decoder(checkpoint)
    trajectory = trajectories.by_sample.get(sample.sample)  # a log without the request has no trajectory
    step = lookup.run.groups[sample.group].step
    batch = lookup.run.steps.get(step) if step is not None else None
    if batch is not None and trajectory is not None:
        masks = BatchMasks(batch.sealed.event, fetch)
        trajectory.loss_mask = masks.of(sample.sample, trajectory.loss_mask, trajectory.length)
    return view_sample(
        lookup.run,
        sample,
        trajectory,
        None if decode is None else lambda token: decode([token]),
        prompt_decoder(checkpoint, fetch),
        sessions_of(lookup.events),
    )
