"""Test that the texts for a filter are kept beside the state: the same live, after a restart, and for old digests."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.prompts import Source
from schemas.rollouts import RolloutCompleted
from slime_events.core.state.apply import apply
from slime_events.core.state.group import GroupState
from slime_events.core.state.run import FOLD, FOLD_WITH_TEXTS, RunState, digest_by, state_digest
from slime_events.plugins.texts import LEAVING, Texts
from storage.log import Recorded
from storage.memory_log import MemoryLog
from tests import made
from tests.conductor.driver import Driver, dropping, make_plan
from tests.golden.log_file import FOLDER
from tests.replay.golden import recorded_of


@pytest.fixture(scope="module")
def records() -> list[Recorded]:
    plan = make_plan(steps=4, max_staleness=2, in_prompt_order=False, eval_every=2, eval_names=("held",))
    driver = Driver(plan, dropping(0.3))
    driver.play(random.Random(3), engine_fails=0.1)
    return driver.log


def texts_shown(texts: Texts, group: GroupState) -> dict[str, object]:
    return {name: sample.text for name, sample in texts.with_texts(group).samples.items()}


async def test_texts_of_undecided_groups_are_there_live_and_after_a_restart(records: list[Recorded]) -> None:
    state, texts, all_texts = RunState(run="drive"), Texts(), dict[str, str]()
    compared = 0
    for number, recorded in enumerate(records, 1):
        event = recorded.envelope.event
        if isinstance(event, GroupAccepted | GroupRejected) and (group := state.groups.get(event.group)):
            assert texts_shown(texts, group) == {name: all_texts.get(name, msgspec.UNSET) for name in group.samples}
            log = MemoryLog("drive")
            await log.restore(records[: number - 1])
            again = Texts()
            await again.restore(log, state)
            assert again.with_texts(group) == texts.with_texts(group)
            compared += bool(all_texts.keys() & group.samples.keys())
        if isinstance(event, RolloutCompleted):
            all_texts[event.sample] = event.text
        apply(state, recorded)
        texts.apply(event, state)
    assert compared > 10
    assert not texts._texts, "nothing is kept of decided groups, nor of evaluations"


TOOLS, CHAT = [{"name": "look"}], {"messages": [{"role": "user", "content": "?"}], "chat": True}


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, False),
        ({"tools": TOOLS}, True),
        (CHAT, True),
        ({"generate_function_path": "own:f"}, True),
        ({"custom_rm_path": "own:f"}, True),
        ({"attributes": {"mine": 1}}, True),
        ({"tools": TOOLS, "purpose": Purpose.EVAL}, False),
    ],
)
def test_a_prompt_is_shown_where_it_says_more_than_the_state(fields: dict[str, Any], shown: bool) -> None:
    submitted = made.submitted(text="?", source=Source(path="p"), **fields)
    group, state = GroupState(group="g", prompt=submitted.tokens), RunState(run="run")
    state.groups["g"] = group
    rejected = made.rejected(cause=RejectionCause.STALE, reason="too old")
    for texts, stays in ((Texts(), False), (Texts(until_trained=True), True)):
        texts.apply(submitted, state)
        assert texts.with_texts(group).asked == (submitted if shown else msgspec.UNSET)
        texts.apply(rejected, state)
        assert texts.with_texts(group).asked == (submitted if shown and stays else msgspec.UNSET)
        state.groups.clear()
        texts.apply(rejected, state)
        assert texts.with_texts(group).asked is msgspec.UNSET
        state.groups["g"] = group
    old = Texts(of_all=True)
    old.apply(submitted, state)
    assert old.with_texts(group).asked is msgspec.UNSET, "as states held it once"


@pytest.mark.parametrize("kind", [{}, {"until_trained": True}, {"of_all": True}])
def test_what_groups_said_is_let_go_with_them(kind: dict[str, bool], records: list[Recorded]) -> None:
    state, texts, left = RunState(run="drive"), Texts(**kind), 0
    for recorded in records:
        apply(state, recorded)
        texts.apply(recorded.envelope.event, state)
        if isinstance(recorded.envelope.event, LEAVING):
            left += 1
            assert texts._texts.keys() <= state.groups.keys()
            assert texts._prompts.keys() <= state.groups.keys()
    assert left


def test_no_state_holds_a_text(records: list[Recorded]) -> None:
    state = RunState(run="drive")
    for recorded in records:
        apply(state, recorded)
        assert all(s.text is s.prompt_text is msgspec.UNSET for g in state.groups.values() for s in g.samples.values())


def test_the_digests_of_states_that_held_texts_can_still_be_told() -> None:
    """Taken with the rules of that version, at every event of a log of its schemas."""
    records = recorded_of(FOLDER / "v2.slimelog")
    state, texts = RunState(run=records[0].envelope.run), Texts(of_all=True)
    for recorded in records:
        apply(state, recorded)
        texts.apply(recorded.envelope.event, state)
    before = "b0fb6a3d6ba2d26f6029314352da165dd6cee7c3a389bdd5aa2f561d244a0da6"
    assert digest_by(FOLD_WITH_TEXTS, state, texts.with_texts) == before
    assert digest_by(FOLD, state, texts.with_texts) == state_digest(state)
    assert digest_by(FOLD_WITH_TEXTS - 1, state, texts.with_texts) is None
