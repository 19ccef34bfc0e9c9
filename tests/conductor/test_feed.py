"""Test what a turn takes from its feed: prompts of a branch, evaluations, and the first events of a new conductor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from schemas.errors import DataError
from schemas.event import Purpose
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from schemas.rollouts import RolloutRequested, Sampling
from schemas.runs import Branched
from slime_events.core.state.run import EvalState, RunPhase, RunState
from slime_events.loop.conductor.cycle import draw, evaluation, recovery_events, run_cycle
from slime_events.loop.prompts.prompt import Prompted
from storage.log import Recorded
from tests import made
from tests.conductor.driver import Driver, keep_all, make_plan

BAD = PromptRejected(source=Source(path="f", offset=-1, line=9), reason="not_json")


def row(offset: int, *, bad: bool = False) -> Prompted:
    source = Source(path="f", offset=offset)
    if bad:
        return PromptRejected(source=source, reason="too_long")
    return made.submitted(f"g{offset}", source=source)


class Rows:
    """A file of ten prompts; some of them cannot be used, and so can no prompt of the set `empty`."""

    def __init__(self, bad: Sequence[int] = ()) -> None:
        self.bad = bad

    def observe(self, recorded: Recorded) -> None:
        return

    def malformed(self) -> list[PromptRejected]:
        return [BAD]

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        rows: list[Prompted] = []
        for offset in range(cursors.get("f", 0), 10):
            if count:
                rows.append(row(offset, bad=offset in self.bad))
                count -= isinstance(rows[-1], PromptSubmitted)
        return rows

    def evaluation(self, name: str, version: int) -> list[Prompted]:
        source = Source(path=name, offset=0)
        bad = PromptRejected(source=source, reason="empty", dataset=name)
        good = made.submitted(
            f"eval-{name}-v{version}", tokens=[2], source=source, purpose=Purpose.EVAL, dataset=name, version=version,
        )  # fmt: skip
        return [bad] if name == "empty" else [bad, good]


def offsets(drawn: Sequence[Prompted]) -> list[int]:
    return [prompt.source.offset for prompt in drawn]


def branch(**passed: tuple[int, ...]) -> RunState:
    branched = Branched(
        run="p", where="w", position=9, version=0, weights_digest="", optimizer_digest="", passed=passed
    )
    return RunState(run="r", branched=branched, cursors={"f": 2})


@pytest.mark.parametrize(
    ("passed", "bad", "count", "drawn"),
    [
        ({}, (), 2, [2, 3]),
        ({"f": (2, 4)}, (), 2, [3, 5]),
        ({"f": (3,), "g": (2,)}, (), 3, [2, 4, 5]),
        ({"f": (2,)}, (3,), 2, [3, 4, 5]),
        ({"f": (4,)}, (4,), 2, [2, 3]),
        ({"f": (8, 9)}, (), 99, [2, 3, 4, 5, 6, 7]),
        ({"f": (2,)}, (), 0, []),
    ],
)
def test_a_branch_passes_over_what_its_parent_was_done_with(
    passed: dict[str, tuple[int, ...]], bad: Sequence[int], count: int, drawn: list[int]
) -> None:
    """Continue until it has enough usable ones, or there are no more."""
    state = branch(**passed)
    assert offsets(draw(state, count, Rows(bad))) == drawn
    assert state.cursors == {"f": 2}, "the state is not changed by a decision"


EVAL = Sampling(max_new_tokens=3, temperature=0.0)


def test_an_evaluation_s_prompts_come_before_its_requests() -> None:
    plan = make_plan(eval_names=("held",), eval_samples=3, eval_sampling=EVAL)
    bad, prompt, *requests = evaluation("held", 7, plan, Rows())
    assert isinstance(bad, PromptRejected)
    assert isinstance(prompt, PromptSubmitted)
    assert [request.identity() for request in requests] == [(f"eval-held-v7-s{index}", 0) for index in range(3)]
    for request in requests:
        assert isinstance(request, RolloutRequested)
        assert (request.sampling, request.min_version, request.purpose) == (EVAL, 7, Purpose.EVAL)
        assert request.prompt == prompt.tokens
    with pytest.raises(DataError):
        evaluation("empty", 7, plan, Rows())


def test_an_evaluation_samples_as_training_where_nothing_else_is_said() -> None:
    *_, request = evaluation("held", 0, make_plan(), Rows())
    assert isinstance(request, RolloutRequested)
    assert request.sampling == make_plan().sampling


def test_the_recovery_events_of_a_new_conductor() -> None:
    """Bad lines, the requests that the one before it had still to say, and evaluations that it had begun."""
    driver = Driver(make_plan(groups=1, samples=2))
    driver.state.evals = {"held-v3": EvalState(dataset="held", version=3)}
    del driver.state.groups["g0000"].samples["g0000-s1"]
    events = recovery_events(driver.state, driver.plan, Rows())
    assert events[0] == BAD
    assert [event.entity() for event in events[1:] if isinstance(event, RolloutRequested)] == [
        "g0000-s1", "eval-held-v3-s0",
    ]  # fmt: skip
    assert events[2:] == evaluation("held", 3, driver.plan, Rows())


def test_a_turn_is_decisions_then_prompts_then_evaluations() -> None:
    plan = make_plan(groups=2, samples=1, eval_every=1, eval_names=("held",))
    state = RunState(run="r", phase=RunPhase.RUNNING, version=0, published=0)
    events = run_cycle(state, plan, keep_all, lambda raw, _: list(raw), Rows(bad=(0,)))
    assert [type(event) for event in events[:5]] == [
        PromptRejected, PromptSubmitted, RolloutRequested, PromptSubmitted, RolloutRequested,
    ]  # fmt: skip
    assert events[5:] == evaluation("held", 0, plan, Rows())
