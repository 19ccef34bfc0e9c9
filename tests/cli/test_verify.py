"""`verify`: the fold of a finished run's log is the state that the live run ended with."""

from __future__ import annotations

import msgspec
import pytest

from schemas.archives import ArchiveSealed
from schemas.errors import LogDamaged
from schemas.event import Event
from schemas.rewards import RewardAssigned
from slime_events.model.verify import verify
from tests.cli.small_run import events, finished, small_run, write


async def test_a_whole_log_folds_to_the_digest_it_ended_with() -> None:
    log = await small_run()
    verified = await verify(log)
    assert verified.events == len(log.records) - 1
    assert verified.steps == 2
    assert str(verified).count("\n") == 0
    assert verified.digest in str(verified)


async def test_what_is_said_after_the_end_is_no_harm() -> None:
    events_ = [*finished(events()), ArchiveSealed(segment=0, first=1, last=9, sha256="aa", bytes=9, url="a")]
    verified = await verify(await write(events_))
    assert verified.position == verified.events + 2


@pytest.mark.parametrize("gone", range(1, len(events()), 3))
async def test_a_log_without_one_of_its_events_fails(gone: int) -> None:
    events_ = finished(events())
    copy = await write(events_[:gone] + events_[gone + 1 :])
    with pytest.raises(LogDamaged, match=r"missing"):
        await verify(copy)


async def test_a_hole_in_the_positions_is_named() -> None:
    log = await small_run()
    del log.records[10]
    log.read = _read_of(log.records)  # type: ignore[method-assign]
    with pytest.raises(LogDamaged, match="position 11 is missing, 12 comes after 10"):
        await verify(log)


async def test_a_changed_reward_fails() -> None:
    events_ = finished(events())
    number, reward = next((n, e) for n, e in enumerate(events_) if isinstance(e, RewardAssigned))
    changed: list[Event] = list(events_)
    changed[number] = msgspec.structs.replace(reward, value=0.125)
    with pytest.raises(LogDamaged, match="an event was changed"):
        await verify(await write(changed))


async def test_a_run_that_has_not_ended_cannot_be_verified() -> None:
    with pytest.raises(LogDamaged, match=r"no run\.finished"):
        await verify(await write(events()))


def _read_of(records):  # type: ignore[no-untyped-def]
    async def read(start=1, subject=None, *, follow=False):  # type: ignore[no-untyped-def]
        for recorded in records:
            yield recorded

    return read
