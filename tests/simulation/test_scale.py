"""A small run in virtual time: it depends on the seed alone, loses nothing, and keeps the conductor's promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from schemas.batches import BatchSealed
from schemas.errors import ConfigError
from schemas.rollouts import RolloutRequested
from slime_events.core.state.group import SamplePhase
from slime_events.core.state.partial_events import Completed, Rewarded
from slime_events.core.state.run import state_digest
from tests.simulation.__main__ import main
from tests.simulation.scale.costs import Costs
from tests.simulation.scale.virtual_run import VirtualRun

SECONDS = 1500.0
SMALL = Costs(
    losses_per_hour=80, engines=12, open_samples=96, group_size=4, room=6, mean_length=2000, longest=8000, chunk_s=30.0
)


class Watched(VirtualRun):
    """Keep the events, and look at the engines after each append."""

    def __init__(self, costs: Costs) -> None:
        self.log: list[Any] = []
        super().__init__(costs)

    def _append(self, events: Sequence[Any]) -> None:
        super()._append(events)
        self.log += events
        assert self.state.open_groups <= self.plan.room
        assert all(len(engine.running) <= self.costs.room for engine in self.engines.engines)


@pytest.fixture(scope="module")
def small() -> Watched:
    run = Watched(SMALL)
    run.run(SECONDS)
    return run


def test_every_sample_ends_once_whatever_engines_are_lost(small: Watched) -> None:
    assert small.engines.lost > 5
    requested = Counter(event.sample for event in small.log if isinstance(event, RolloutRequested))
    completed = Counter(event.sample for event in small.log if type(event) is Completed)
    rewarded = Counter(event.sample for event in small.log if type(event) is Rewarded)
    assert set(requested.values()) == set(completed.values()) == set(rewarded.values()) == {1}
    assert set(rewarded) <= set(completed) <= set(requested)
    open_ = {name for group in small.state.groups.values() for name in group.samples}
    assert set(requested) - set(completed) <= open_
    held = {sample for engine in small.engines.engines for sample in engine.running}
    waiting = {work.request.sample for work in small.engines.queue}
    assert not held & waiting
    unfinished = (SamplePhase.REQUESTED, SamplePhase.RUNNING)
    phases = {name: s.phase for group in small.state.groups.values() for name, s in group.samples.items()}
    under_way = {name for name, phase in phases.items() if phase in unfinished}
    assert held | waiting <= under_way
    assert len(under_way - held - waiting) <= SMALL.room * 2, "those of an engine that was just lost"


def test_batches_are_full_and_in_time(small: Watched) -> None:
    batches = [event for event in small.log if isinstance(event, BatchSealed)]
    assert len(batches) > 3
    assert {len(batch.groups) for batch in batches} == {SMALL.groups}
    assert all(batch.step - batch.oldest_version <= SMALL.max_staleness for batch in batches)
    assert small.state.version == sum(kind == "step.committed" for kind in small.measures.events.elements())


def test_the_seed_decides(small: Watched) -> None:
    again, other = VirtualRun(SMALL), VirtualRun(Costs(**{**_fields(SMALL), "seed": 2}))
    for run in (again, other):
        run.run(SECONDS)
    assert state_digest(again.state) == state_digest(small.state) != state_digest(other.state)
    assert again.measures.events == small.measures.events


def test_shorter_chunks_are_more(small: Watched) -> None:
    run = VirtualRun(Costs(**{**_fields(SMALL), "losses_per_hour": 0.0, "chunk_s": 10.0}))
    run.run(SECONDS)
    assert run.engines.lost == 0
    assert run.measures.events["rollout.progressed"] > 2 * small.measures.events["rollout.progressed"]


def _fields(costs: Costs) -> dict[str, Any]:
    return {name: getattr(costs, name) for name in costs.__struct_fields__}


@pytest.mark.parametrize(
    "changes", [{"engines": 0}, {"open_samples": 31}, {"chunk_s": 0.0}, {"max_staleness": -1}, {"tokens_per_s": -1.0}]
)
def test_what_is_no_run_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        VirtualRun(Costs(**changes))


def test_the_command_prints_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--engines", "4", "--open-samples", "64", "--seconds", "700", "--mean-length", "500"]) == 0
    printed = capsys.readouterr().out
    assert "rollout.requested" in printed
    assert "roll calls" in printed
    assert main(["--engines", "4", "--open-samples", "1"]) == 2
