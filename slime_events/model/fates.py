"""Fates of prompts from outside, for producers who know their keys or sent them."""

from schemas.errors import RunNotFound
from schemas.groups import GroupRejected
from schemas.ids import inbox_group_id, is_inbox_group
from schemas.inbox import Fate, InboxFate, InboxFates, InboxQuestion, SampleFate
from schemas.prompts import PromptOffered, PromptRejected
from schemas.subjects import is_token, of_type
from slime_events.model.lookup import Lookup
from slime_events.model.records import Group, Run, Sample
from storage.log import Readable


async def fates_of(log: Readable, question: InboxQuestion) -> InboxFates:
    """Return the fate of each prompt that `question` names, as the log has it now. Raises StorageError."""
    lookup = Lookup(log)
    groups = {key: await lookup.verdict(inbox_group_id(key)) for key in question.keys}
    fates = [_fate(key, group, lookup.run) for key, group in groups.items()]
    for index, fate in enumerate(fates):
        if fate.fate is Fate.UNKNOWN and (offered := await _offered(log, fate.group)) is not None:
            fates[index] = offered[1]
    return InboxFates(tuple(fates))


async def fate_of(log: Readable, group: str, sender: str) -> InboxFate:
    """Return the fate of a sender's group, with its samples.

    Raises RunNotFound if the sender has no group of that id; StorageError.
    """
    lookup = Lookup(log)
    prompt = (await lookup.verdict(group)).prompt if is_inbox_group(group) else None
    offered = await _offered(log, group) if prompt is None else None
    if offered is not None and offered[0] == sender:
        return offered[1]
    if prompt is None or prompt.event.source.sender != sender:
        raise RunNotFound(f"{sender} has not sent a prompt of group {group!r} to run {log.run}")
    record = await lookup.group(group)
    samples = tuple(map(_sample, record.members))
    return _fate(prompt.event.source.key, record, lookup.run, samples)


async def _offered(log: Readable, group: str) -> tuple[str, InboxFate] | None:
    """Return sender and fate of a prompt that was offered while no conductor ran, until the run takes it in."""
    if not is_token(group):
        return None
    subjects = [of_type(log.run, f"prompt.{verb}", group) for verb in ("offered", "rejected")]
    events = [recorded.envelope.event for recorded in (await log.last_of_each(subjects)).values()]
    refused = next((event for event in events if isinstance(event, PromptRejected)), None)
    if refused is not None:
        source = refused.source
        return source.sender, InboxFate(source.key, group, Fate.REJECTED, reason=refused.reason)
    waits = next((event for event in events if isinstance(event, PromptOffered)), None)
    return None if waits is None else (waits.sender, InboxFate(waits.key, group, Fate.WAITING))


def _fate(key: str, group: Group, run: Run, samples: tuple[SampleFate, ...] = ()) -> InboxFate:
    if group.verdict is None:
        return InboxFate(key, group.group, Fate.WAITING if group.prompt else Fate.UNKNOWN, samples=samples)
    verdict = group.verdict.event
    if isinstance(verdict, GroupRejected):
        return InboxFate(key, group.group, Fate.REJECTED, verdict.rewards, verdict.reason, samples=samples)
    committed = run.steps[group.step].committed if group.step is not None else None
    return InboxFate(
        key,
        group.group,
        Fate.TRAINED if committed else Fate.ACCEPTED,
        verdict.rewards,
        step=group.step,
        version=committed.event.version if committed else None,
        samples=samples,
    )


def _sample(sample: Sample) -> SampleFate:
    spans = sample.completed.event.spans if sample.completed else sample.spans
    versions = tuple(dict.fromkeys(span.version for span in spans))
    tokens = sample.completed.event.length if sample.completed else sample.length
    return SampleFate(sample.sample, tokens, versions, sample.completed is not None, sample.value)
