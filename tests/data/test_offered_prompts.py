"""Prompts that were offered while nobody conducted the run: each is answered once, as a prompt or with why not."""

from __future__ import annotations

from typing import Any

import pytest

from actors import offered_prompts
from actors.offered_prompts import OfferedPrompts
from schemas.envelope import enclose
from schemas.ids import INBOX
from schemas.inbox import InboxPrompt
from schemas.prompts import PromptOffered, PromptRejected
from slime_events.core.state.run import RunState
from slime_events.loop.prompts.inbox_message import WrongField
from storage.log import Append
from storage.memory_log import MemoryLog


def offer(key: str) -> PromptOffered:
    return PromptOffered(group=f"g-{key}", sender="team", key=key, prompt="p", label=1)


class Prompts:
    """Answer each prompt with its key, or with an error if it is `bad`."""

    def submitted(self, prompt: InboxPrompt, sender: str) -> Any:
        if prompt.key == "bad":
            raise WrongField("prompt", "no")
        return (prompt, sender)


async def offered(*keys: str) -> tuple[OfferedPrompts, RunState]:
    log, state = MemoryLog("r"), RunState(run="r", offered={f"g-{key}": at for at, key in enumerate(keys, 1)})
    for at, key in enumerate(keys, 1):
        await log.append([Append(enclose("r", offer(key), at=at, producer="t"))])
    return OfferedPrompts(log, Prompts()), state  # type: ignore[arg-type]


async def test_each_offer_is_answered_once() -> None:
    prompts, state = await offered("a", "bad")
    first, second = await prompts.answers(state)
    assert first == (InboxPrompt(key="a", prompt="p", label=1), "team")
    assert isinstance(second, PromptRejected)
    assert (second.reason, second.dataset, second.group) == ("no", INBOX, "g-bad")
    source = second.source
    assert (source.path, source.key, source.sender, source.offset) == (INBOX, "bad", "team", -1)
    assert await prompts.answers(state) == []
    assert await prompts.answers(RunState(run="r")) == []


async def test_so_many_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offered_prompts, "AT_ONCE", 2)
    prompts, state = await offered(*"abcde")
    assert [len(await prompts.answers(state)) for _ in range(4)] == [2, 2, 1, 0]
