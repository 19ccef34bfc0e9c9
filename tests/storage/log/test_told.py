"""Test messages beside the log, with every back-end."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from storage.log import Recorded
from tests.storage.log.appends import reward
from tests.storage.log.conftest import Open


@pytest.mark.parametrize("early", [False, True])
async def test_who_hears_is_told_of_what_is_stored(opened: Open, early: bool) -> None:
    """Hear messages in their order, but not one's own, and store nothing of them. Announced events are heard too."""
    teller, hearer = await opened(), await opened()
    appends = [reward(teller, sample) for sample in "abc"]
    positions = await teller.append(appends)
    stored = [
        Recorded(at, append.envelope.subject, append.envelope, append.encoded())
        for at, append in zip(positions, appends, strict=True)
    ]
    heard, others, is_told = list[Recorded](), list[Recorded](), asyncio.Event()

    def hear(recorded: Recorded) -> None:
        heard.append(recorded)
        if recorded.position == positions[-1]:
            is_told.set()

    end = await teller.end()
    async with (
        hearer.listen("one", hear, early=early),
        hearer.listen("another", others.append, early=early),
        hearer.listen("one", others.append, early=not early),
    ):
        await teller.notify("nobody", stored, early=early)
        async with asyncio.timeout(20):
            while not heard:  # a node of a cluster knows a little later who listens at another
                await teller.notify("one", stored, early=early)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(is_told.wait(), 2.0)
            await is_told.wait()
    assert heard == stored
    assert not others
    assert await teller.end() == end
