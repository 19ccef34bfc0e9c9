"""The index of a state's groups says at every event what one made anew would, and costs nothing for who waits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec import UNSET

from schemas.envelope import enclose
from schemas.prompts import Source
from slime_events.core.state.group_index import GroupIndex
from slime_events.core.state.keeper import EVERY, StateKeeper
from slime_events.core.state.run import RunState, state_digest
from slime_events.core.state.snapshot import Snapshot, Snapshots
from slime_events.core.state.state_fold import StateFold
from storage.log import once
from storage.memory_log import MemoryLog
from tests import made
from tests.state.test_fold import LOGS


def said_by(index: GroupIndex) -> dict[str, Any]:
    """All that an index says. The order of `requested` and `recalled` counts, that of the others does not."""
    index.refresh()
    return {
        "begun": [group.group for group in index.begun],
        "by_share": {share: list(names) for share, names in index.by_share.items() if names},
        "requested": list(index.requested),
        "recalled": list(index.recalled),
        "settled": set(index.settled),
        "failed": set(index.failed),
        "suspended": {purpose: set(groups) for purpose, groups in index.suspended.items()},
        "counts": (index.unsettled, index.ages, index.settled_ages, index.shares),
    }


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("name", LOGS)
def test_it_follows_the_state(name: str, every: int) -> None:
    records = LOGS[name]()
    indexed, plain = StateFold(records[0].envelope.run), StateFold(records[0].envelope.run)
    kept = indexed.state.index
    for recorded in records:
        indexed.apply(recorded)
        plain.apply(recorded)
        state = indexed.state
        if recorded.position % every == 0:
            assert said_by(kept) == said_by(GroupIndex(state.groups, state.waiting))
            assert state.index is kept, "it was not made anew"
    assert state_digest(indexed.state) == state_digest(plain.state)
    assert indexed.snapshot() == plain.snapshot()


def test_a_state_that_was_made_by_hand_has_a_right_one() -> None:
    state = RunState(run="r")
    assert not state.index.begun
    fold = StateFold("r")
    for recorded in LOGS["driven"]()[:40]:
        fold.apply(recorded)
    state.groups, state.waiting = dict(fold.state.groups), list(fold.state.waiting)
    assert said_by(state.index) == said_by(fold.state.index)
    assert {group.share for group in state.groups.values()} == {UNSET}


async def test_many_that_wait_make_snapshots_rare(tmp_path: Any) -> None:
    """One is written again once as many events came as it has groups: it is as large as they are many."""
    log, fold = MemoryLog("r"), StateFold("r")
    waiting = [made.submitted(f"g{n}", text="?", source=Source(path="inbox", key=f"{n}")) for n in range(2 * EVERY)]
    await log.append([])
    snapshots = Snapshots(tmp_path, Snapshot)
    keeper: StateKeeper[Snapshot] = StateKeeper(snapshots, every=10)
    written = []
    for number, prompt in enumerate(waiting, 1):
        (at,) = await log.append([once(enclose("r", prompt, at=1, producer="t"))])
        fold.apply(log.event_at(at))
        before = keeper._stored
        keeper.observe(fold)
        if keeper._stored != before:
            written.append(number)
            assert keeper._writing is not None
            await keeper._writing
    assert written[0] == 10
    assert all(later - earlier >= earlier for earlier, later in pairwise(written))
    assert len(written) < 12
