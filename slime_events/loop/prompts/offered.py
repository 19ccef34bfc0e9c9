"""Prompts from producers while no conductor runs: they wait in the run's log, as they were sent."""

import time

import msgspec

from schemas.envelope import enclose
from schemas.errors import InboxFull, LogUnavailable, RunIsOver
from schemas.ids import inbox_group_id
from schemas.inbox import FieldError, InboxPrompt, InboxReply
from schemas.prompts import PromptOffered
from schemas.runs import FinishReason, RunFinished
from schemas.subjects import about, of_type
from slime_events.loop.prompts.inbox_message import WrongField, as_carried, read_message
from slime_events.loop.prompts.producer_keys import KnownKeys
from storage.log import EventLog, Readable, once

MOST = 100_000
"""Most offers that may wait for a run that is not running; by default as many as a running run accepts."""
OFF_BYTES = 900_000
"""Most bytes of a message to a run that is not running: any of our servers accepts as much."""


async def offer(log: EventLog, data: bytes, sender: str, worker: str, *, most: int = MOST) -> InboxReply:
    """Append the prompts of a message as offers, or reply with its errors. worker: name of the appending process.

    Problems that only the model's tokenizer can find are found when the run runs: it rejects such prompts then. Raises
    InboxFull, LogUnavailable, RunIsOver.
    """
    prompts, errors = read_message(data, InboxPrompt)
    for index, prompt in prompts:
        try:
            as_carried(msgspec.structs.asdict(prompt))
        except WrongField as error:
            errors.append(FieldError(index, error.field, error.message))
    groups = [inbox_group_id(prompt.key, sender) for _, prompt in prompts]
    keys = await KnownKeys.of(log, groups)
    conflicts = (keys.conflict(n, group, prompt.content()) for (n, prompt), group in zip(prompts, groups, strict=True))
    errors += filter(None, conflicts)
    if errors:
        return InboxReply(accepted=False, errors=tuple(errors))
    events = {
        group: _offered(group, prompt, sender)
        for group, (_, prompt) in zip(groups, prompts, strict=True)
        if group not in keys.submitted
    }
    waiting = len(await log.subjects(of_type(log.run, "prompt.offered"), await conducted_until(log)))
    if events and waiting >= most:
        raise InboxFull(
            f"run {log.run} is not running, and {waiting:,} prompts wait for it: try again when it is running"
        )
    await log.append([once(enclose(log.run, event, at=time.time_ns(), producer=worker)) for event in events.values()])
    return InboxReply(accepted=True, groups=tuple(groups))


async def conducted_until(log: Readable) -> int:
    """Return the position of the run's newest start or end: earlier offers were taken in.

    Raises LogUnavailable for a run that has not started, because a log begins with run.started, and RunIsOver.
    """
    newest = await log.last(about(log.run, "run", "run"))
    if newest is None:
        raise LogUnavailable(f"run {log.run} has not started: try again when it has")
    if isinstance(end := newest.envelope.event, RunFinished) and end.reason is FinishReason.ALL_STEPS:
        raise RunIsOver(
            f"run {log.run} has finished all its steps: to send more prompts, resume it with `resume --num-rollout N`"
        )
    return newest.position


def _offered(group: str, prompt: InboxPrompt, sender: str) -> PromptOffered:
    return PromptOffered(group=group, sender=sender, **msgspec.structs.asdict(prompt))
