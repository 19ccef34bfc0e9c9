"""The verdict of a filter on one group is that of `rescore` for the whole run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from schemas.errors import InvalidValue
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.rewards import RewardFailureKind
from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.filter_trial import NAMES, NONE, FilterTrial, try_filter
from slime_events.analysis.rescore.rescore import rescore
from slime_events.core.run.run_reader import OpenedRun
from slime_events.loop.learner.overrides import read_overrides
from slime_events.model.lookup import Lookup
from slime_events.plugins.filters.dynamic_sampling import FILTERS
from slime_events.plugins.loader import name_of
from tests import made
from tests.lineage.opened import opened as opened_log
from tests.rescore.recorded import NONZERO_STD, opened, record, settings, with_filter
from tests.simulation.simulation import Simulation

STD, FALLBACK = "check_reward_nonzero_std", "check_reward_nonzero_std_with_fallback"


async def _try(run: OpenedRun, group: str, name: str) -> FilterTrial:
    return try_filter(await Lookup(run.log).group(group), name, run.settings)


def _decided(sim: Simulation) -> dict[str, bool]:
    return {event.group: kind is GroupAccepted for kind in (GroupAccepted, GroupRejected) for event in sim.events(kind)}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("before", [None, NONZERO_STD])
async def test_a_trial_is_the_verdict_of_a_rescore(tmp_path: Path, name: str, before: str | None) -> None:
    run = with_filter(settings(), before)
    sim = await record(tmp_path, run)
    out = io.BytesIO()
    change = make_change(run, ["--dynamic-sampling-filter-path", name_of(FILTERS[name])])
    report = await rescore(opened(sim, run), change, out)
    flips = read_overrides(out.getvalue(), "changes").verdicts
    fallbacks = 0
    for group, accepted in _decided(sim).items():
        trial = await _try(opened(sim, run), group, name)
        assert trial.accepted is flips.get(group, accepted)
        assert trial.differs is (group in flips)
        fallbacks += trial.fallback
    assert fallbacks == report.groups.by_fallback
    assert (before is None and name == STD) is bool(flips)


async def test_no_filter_keeps_every_graded_group(tmp_path: Path) -> None:
    run = with_filter(settings(), NONZERO_STD)
    sim = await record(tmp_path, run)
    decided = _decided(sim)
    assert False in decided.values()
    for group, accepted in decided.items():
        trial = await _try(opened(sim, run), group, NONE)
        assert (trial.accepted, trial.differs, trial.filter) == (True, not accepted, NONE)


def _group(*rest: Event) -> list[Event]:
    return [made.started(), made.submitted("g"), made.requested("g-s0"), made.requested("g-s1"), *rest]


async def test_a_stale_group_stays_rejected_and_an_ungraded_one_is() -> None:
    done = [made.completed(f"g-s{index}", [1], [-0.5], length=1) for index in (0, 1)]
    graded = [made.assigned("g-s0", value=0.0), made.assigned("g-s1", value=1.0)]
    stale = await opened_log(_group(*done, *graded, made.rejected("g", RejectionCause.STALE, reason="old")))
    ungraded = await opened_log(
        _group(
            *done, graded[0], made.reward_failed("g-s1", RewardFailureKind.RAISED, message="late"),
            made.rejected("g", RejectionCause.FILTER, reason="late"),
        )
    )  # fmt: skip
    for name in NAMES:
        trial = await _try(stale, "g", name)
        assert (trial.accepted, trial.beyond, trial.differs, trial.reason) == (False, True, False, "old")
        trial = await _try(ungraded, "g", name)
        assert (trial.accepted, trial.beyond, trial.differs) == (False, False, False)


@pytest.mark.parametrize("name", ["", "None", "os:system", "spread.py:keep", f"slime_events.plugins.filters:{STD}"])
async def test_only_our_own_filters_are_tried(name: str) -> None:
    run = await opened_log(_group(made.rejected("g", RejectionCause.FILTER)))
    with pytest.raises(InvalidValue):
        await _try(run, "g", name)


async def test_a_group_without_a_decision_is_refused() -> None:
    run = await opened_log(_group())
    with pytest.raises(InvalidValue):
        await _try(run, "g", STD)
