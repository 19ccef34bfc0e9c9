"""Snapshots are a cache: with one, without one and with a bad one a fold comes to the same state."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from schemas.arrays import pack_tokens
from schemas.prompts import PromptSubmitted
from slime_events.core.state import snapshot as snapshot_module
from slime_events.core.state.apply import apply
from slime_events.core.state.group import GroupPhase, GroupState
from slime_events.core.state.run import RunState, SealedState, state_digest
from slime_events.core.state.snapshot import (
    KEPT,
    Snapshot,
    Snapshots,
    Unusable,
    encode_snapshot,
    low_water,
    pack,
    training_start,
    unpack,
)
from storage.log import Recorded
from storage.memory_log import MemoryLog
from tests import made
from tests.conductor.driver import Driver, dropping, make_plan


@pytest.fixture(scope="module")
def driver() -> Driver:
    """A run in its midst: groups in every phase, a batch that waits for the trainer, checkpoints."""
    plan = make_plan(
        steps=6, max_staleness=2, in_prompt_order=False, eval_every=2, eval_names=("held",), checkpoint_every=2
    )
    driver = Driver(plan, dropping(0.3))

    def enough(driver: Driver) -> None:
        if driver.state.version >= 4 and driver.state.sealed and driver.state.evals:
            raise StopIteration

    with pytest.raises(StopIteration):
        driver.play(random.Random(5), engine_fails=0.1, check=enough)
    return driver


def log_of(driver: Driver, upto: int | None = None) -> MemoryLog:
    log = MemoryLog("drive")
    log.records = list(driver.log[:upto])
    return log


def folded(log: list[Recorded]) -> tuple[RunState, str]:
    """The state, and the chain before its last event."""
    state, before = RunState(run="drive"), ""
    for recorded in log:
        before = state.chain
        apply(state, recorded)
    return state, before


def kept(folder: Path, driver: Driver, *positions: int) -> Snapshots:
    snapshots = Snapshots(folder)
    for position in positions:
        state, before = folded(driver.log[:position])
        snapshots.write(position, encode_snapshot(state, before))
    return snapshots


@pytest.mark.parametrize("share", [0.01, 0.4, 0.99, 1.0])
async def test_a_fold_goes_on_from_it(driver: Driver, tmp_path: Path, share: float) -> None:
    position = max(1, int(share * len(driver.log)))
    snapshot = await kept(tmp_path, driver, position).newest(log_of(driver))
    assert snapshot is not None
    assert snapshot.position == position
    for recorded in driver.log[position:]:
        apply(snapshot.state, recorded)
    assert state_digest(snapshot.state) == state_digest(driver.state)
    assert snapshot.state == driver.state


async def test_the_newest_two_are_kept(driver: Driver, tmp_path: Path) -> None:
    await kept(tmp_path, driver, 10, 20, 30).newest(log_of(driver))
    assert KEPT == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000020.snapshot", "000000000030.snapshot"]


def test_what_is_taken_does_not_change_with_the_state(driver: Driver) -> None:
    state, before = folded(driver.log[:50])
    taken = encode_snapshot(state, before)
    for recorded in driver.log[50:60]:
        apply(state, recorded)
    assert unpack(pack(taken), Snapshot).state == folded(driver.log[:50])[0]


@pytest.mark.parametrize("at", [0, 25, 60, -1])
async def test_a_damaged_one_is_passed_over(
    driver: Driver, tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = kept(tmp_path, driver, 20, 30)
    path = tmp_path / "000000000030.snapshot"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        snapshot = await snapshots.newest(log_of(driver))
    assert snapshot is not None
    assert snapshot.position == 20
    assert f"{path} is not used: it is damaged" in caplog.text
    path.write_bytes(b"")
    (tmp_path / "000000000020.snapshot").write_bytes(data[:100])
    assert await snapshots.newest(log_of(driver)) is None


async def test_of_other_rules(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = kept(tmp_path, driver, 20)
    monkeypatch.setattr(snapshot_module, "FOLD", 999)
    with pytest.raises(Unusable, match="this release has version 999"):
        unpack((tmp_path / "000000000020.snapshot").read_bytes(), Snapshot)
    assert await snapshots.newest(log_of(driver)) is None


async def test_of_another_history(driver: Driver, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Refuse the same ids at the same positions with other times: that is another run of the same name."""
    snapshots = kept(tmp_path, driver, 20)
    other = log_of(driver)
    last = other.records[19]
    other.records[19] = Recorded(20, last.subject, last.envelope, last.data.replace(b"test", b"tost"))
    assert await snapshots.newest(other) is None
    assert "the log has a different history up to position 20" in caplog.text
    assert await snapshots.newest(log_of(driver, upto=19)) is None
    assert "the log ends before its position 20" in caplog.text
    renamed = MemoryLog("another")
    renamed.records = list(driver.log)
    assert await snapshots.newest(renamed) is None
    assert "it belongs to run drive" in caplog.text


def test_nothing_open_lies_before_the_low_water(driver: Driver) -> None:
    """Begin at the low water at every position of the run, and see every prompt that is still undecided."""
    state = RunState(run="drive")
    lows = []
    for recorded in driver.log:
        apply(state, recorded)
        lows.append(low_water(state))
        open_ = [g for g in state.groups.values() if g.phase in (GroupPhase.SUBMITTED, GroupPhase.REQUESTED)]
        assert all(lows[-1] <= group.position for group in open_)
        assert all(driver.log[group.position - 1].envelope.event.group == group.group for group in open_)
    assert lows[-1] > len(driver.log) / 3, "it moves on with the run"


def test_where_a_trainer_begins(driver: Driver) -> None:
    state = driver.state
    assert min(state.batch_starts) == 4, "the batches since the newest checkpoint"
    start = training_start(state, 4)
    prompts = {e.envelope.event.group: e.position for e in driver.log if isinstance(e.envelope.event, PromptSubmitted)}
    needed = [prompts[group] for batch in driver.batches if batch.step >= 4 for group in batch.groups]
    assert 1 < start <= min(needed)
    assert training_start(state, 3) == 1, "before the newest checkpoint the state has forgotten"
    assert training_start(state, 5) >= start


def test_what_is_needed_of_a_log() -> None:
    """From the batches since a version on, and from groups without a verdict or a batch, wherever they lie."""
    state = RunState(run="r", events=50, next_step=6, batch_starts={4: 20, 5: 30})
    assert [training_start(state, version) for version in (3, 4, 5, 6)] == [1, 20, 30, 51]
    assert low_water(state) == 51
    for name, position in (("accepted", 10), ("sealed", 20), ("open", 40)):
        state.groups[name] = GroupState(group=name, prompt=pack_tokens([1]), position=position)
    state.accepted, state.sealed = ["accepted"], {4: SealedState(groups=("sealed",), digest="")}
    assert low_water(state) == 40
    assert [training_start(state, version) for version in (3, 4, 5, 6)] == [1, 10, 10, 10]
    state.batch_starts, state.next_step = {}, 0
    assert training_start(state, 0) == 10


def test_a_state_without_anything_open() -> None:
    state = RunState(run="r")
    assert (low_water(state), training_start(state, 0)) == (1, 1)
    apply(state, *made.recorded(made.submitted()))
    assert low_water(state) == 1
