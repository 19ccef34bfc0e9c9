"""What became of prompts from outside: told to whoever knows their keys."""

from schemas.groups import GroupRejected
from schemas.ids import inbox_group_id
from schemas.inbox import Fate, InboxFate, InboxFates, InboxQuestion
from slime_events.analysis.model.lookup import Lookup
from slime_events.analysis.model.records import Group, Run
from storage.log import Readable


async def fates_of(log: Readable, question: InboxQuestion) -> InboxFates:
    """By what the log says now. Raises StorageError."""
    lookup = Lookup(log)
    groups = {key: await lookup.verdict(inbox_group_id(key)) for key in question.keys}
    return InboxFates(tuple(_fate(key, group, lookup.run) for key, group in groups.items()))


def _fate(key: str, group: Group, run: Run) -> InboxFate:
    if group.verdict is None:
        return InboxFate(key, group.group, Fate.WAITING if group.prompt else Fate.UNKNOWN)
    verdict = group.verdict.event
    if isinstance(verdict, GroupRejected):
        return InboxFate(key, group.group, Fate.REJECTED, verdict.rewards, verdict.reason)
    committed = run.steps[group.step].committed if group.step is not None else None
    return InboxFate(
        key,
        group.group,
        Fate.TRAINED if committed else Fate.ACCEPTED,
        verdict.rewards,
        step=group.step,
        version=committed.event.version if committed else None,
    )
