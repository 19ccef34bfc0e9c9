"""`TransferState` against a second fold that looks at the whole log again for each question."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.event import Event
from schemas.runs import RunResumed
from schemas.transfers import TransferBegun, TransferEnded, TransferJoined, TransferOutcome
from schemas.weights import WeightsActivated, WeightsCarrier, WeightsPublished
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.core.state.transfers import TransferState
from tests import made

ENGINES = ("a", "b", "c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(WeightsCarrier)),
        st.tuples(st.sampled_from(["join", "start", "lose", "activate", "late"]), st.sampled_from(ENGINES)),
        st.tuples(st.sampled_from(["begin", "sent", "failed", "trainer", "resume"]), st.just("")),
    ),
    max_size=40,
)


def folded(events: Sequence[Event]) -> TransferState:
    """Return the state after these events."""
    state = TransferState()
    for event in events:
        state.apply(event)
    return state


def open_epoch(events: Sequence[Event]) -> TransferBegun | None:
    """Return the epoch without an end."""
    ended = {event.epoch for event in events if isinstance(event, TransferEnded)}
    return next((event for event in events if isinstance(event, TransferBegun) and event.epoch not in ended), None)


def waiting(events: Sequence[Event]) -> list[TransferJoined]:
    """Return the joins for the newest version that nothing has answered."""
    newest = max((n for n, event in enumerate(events) if isinstance(event, WeightsPublished)), default=None)
    if newest is None:
        return []
    version, after = events[newest], events[newest:]
    assert isinstance(version, WeightsPublished)
    if version.carrier is not WeightsCarrier.COLLECTIVE:
        return []
    joins = {}
    for number, event in enumerate(after):
        if isinstance(event, TransferJoined) and event.version == version.version:
            answered = any(_answers(later, event.engine) for later in after[number + 1 :])
            joins[event.engine] = None if answered else event
    return [join for join in joins.values() if join is not None]


def _answers(event: Event, engine: str) -> bool:
    match event:
        case TransferBegun(members=members):
            return engine in members
        case WeightsActivated(engine=name) | WorkerLost(worker=name):
            return name == engine
    return isinstance(event, RunResumed)


def _event(events: Sequence[Event], kind: str, which: object) -> Event | None:
    """Return the next event of a log, if participants would append it there."""
    state = folded(events)
    version = sum(isinstance(event, WeightsPublished) for event in events)
    engine = str(which)
    match kind:
        case "publish":
            assert isinstance(which, WeightsCarrier)
            return made.published(version, carrier=which)
        case "join":
            return TransferJoined(version=version - 1, engine=engine, ranks=1 + ENGINES.index(engine))
        case "late":
            return TransferJoined(version=version - 2, engine=engine)
        case "start":
            return WorkerJoined(worker=engine, role="engine", pid=1)
        case "lose":
            return WorkerLost(worker=engine, role="engine", reason="killed")
        case "activate":
            return made.activated(max(0, version - 1), engine)
        case "begin":
            return state.next_epoch("127.0.0.1")
        case "trainer":
            return WorkerJoined(worker=f"t{len(events)}", role="trainer", pid=1)
        case "resume":
            return made.resumed(2)
    outcome = TransferOutcome(kind)
    return None if state.open is None else TransferEnded(epoch=state.open.epoch, outcome=outcome)


@settings(max_examples=300)
@given(STEPS)
def test_members_are_the_engines_that_wait(steps: list[tuple[str, object]]) -> None:
    events = list[Event]()
    for kind, which in steps:
        event = _event(events, kind, which)
        if event is None:
            continue
        events.append(event)
        state, joins = folded(events), waiting(events)
        assert state.open == open_epoch(events)
        assert {join.engine for join in joins} == set(state.waiting)
        epoch = state.next_epoch("here")
        assert (epoch is None) == (state.open is not None or not joins)
        if epoch is not None:
            assert set(epoch.members) == {join.engine for join in joins}
            taken = [0]
            for join in joins:
                first = epoch.members[join.engine]
                taken += range(first, first + join.ranks)
            assert sorted(taken) == list(range(epoch.world)), "each rank of the group belongs to one process"
    numbers = [event.epoch for event in events if isinstance(event, TransferBegun)]
    assert numbers == list(range(1, len(numbers) + 1))
    for version in range(len(events)):
        members = [
            name
            for event in events
            if isinstance(event, TransferBegun) and event.version == version
            for name in event.members
        ]
        joined = [e.engine for e in events if isinstance(e, TransferJoined) and e.version == version]
        assert all(members.count(name) <= joined.count(name) for name in members)


def test_an_epoch_must_end_when_a_member_or_the_trainer_is_lost() -> None:
    log: list[Event] = [made.published(0, carrier=WeightsCarrier.COLLECTIVE)]
    log += [TransferJoined(version=0, engine="a"), TransferJoined(version=0, engine="b")]
    begun = folded(log).next_epoch("here")
    assert begun is not None
    log += [begun, TransferJoined(version=0, engine="c")]
    lost = WorkerLost(worker="c", role="engine", reason="killed")
    assert folded([*log, lost]).lost == ""
    lost = WorkerLost(worker="b", role="engine", reason="killed")
    assert "b" in folded([*log, lost]).lost
    assert "t2" in folded([*log, WorkerJoined(worker="t2", role="trainer", pid=1)]).lost
    log += [lost, TransferEnded(epoch=1, outcome=TransferOutcome.FAILED, reason="its member is lost")]
    state = folded(log)
    second = state.next_epoch("here")
    assert (state.open, state.lost) == (None, "")
    assert second is not None
    assert (second.epoch, dict(second.members)) == (2, {"c": 1})


def test_engines_of_different_devices_have_epochs_of_their_own() -> None:
    log: list[Event] = [made.published(0, carrier=WeightsCarrier.COLLECTIVE)]
    log += [TransferJoined(version=0, engine=name, backend=name) for name in ("gloo", "nccl")]
    first = folded(log).next_epoch("here")
    assert first is not None
    assert (first.backend, set(first.members)) == ("gloo", {"gloo"})
    ended = TransferEnded(epoch=1, outcome=TransferOutcome.SENT)
    second = folded([*log, first, ended]).next_epoch("here")
    assert second is not None
    assert (second.backend, set(second.members)) == ("nccl", {"nccl"})


def test_all_wait_only_if_every_engine_has_joined() -> None:
    log: list[Event] = [made.published(0, carrier=WeightsCarrier.COLLECTIVE)]
    log += [WorkerJoined(worker=name, role="engine", pid=1) for name in ("a", "b")]
    log.append(TransferJoined(version=0, engine="a"))
    assert not folded(log).all_wait
    assert folded([*log, TransferJoined(version=0, engine="b")]).all_wait
    assert folded([*log, WorkerLost(worker="b", role="engine", reason="killed")]).all_wait


def test_an_engine_that_took_the_files_waits_no_longer() -> None:
    log: list[Event] = [made.published(0, carrier=WeightsCarrier.COLLECTIVE)]
    log += [TransferJoined(version=0, engine=name) for name in ("a", "b")]
    state = folded([*log, made.activated(0, "a")])
    assert list(state.waiting) == ["b"]
    epoch = state.next_epoch("here")
    assert epoch is not None
    assert dict(epoch.members) == {"b": 1}
