"""Which weights an engine runs next, where an evaluation and training want different ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve_apps.engine_weights import PATIENCE, Choice, Claim, choose_version

HOLD_S = 2.0


def choose(
    current: int, published: int, *claims: Claim, now: float = 100.0, since: float = 0.0, hold_s: float = HOLD_S
) -> Choice:
    return choose_version(current, published, claims, now=now, since=since, hold_s=hold_s)


def test_what_a_claim_accepts() -> None:
    training, evaluation = Claim(3), Claim(3, 3)
    assert [training.accepts(version) for version in (2, 3, 9)] == [False, True, True]
    assert [evaluation.accepts(version) for version in (2, 3, 4)] == [False, True, False]


def test_without_evaluations_the_newest_runs() -> None:
    assert choose(-1, -1) == Choice(-1)
    assert choose(-1, 0) == Choice(0)
    assert choose(3, 4, Claim(3), Claim(4, None, 99.0)) == Choice(4)
    assert choose(4, 4, Claim(3)) == Choice(4)


def test_an_evaluation_under_way_is_finished_before_newer_weights_that_nobody_waits_for() -> None:
    assert choose(3, 4, Claim(3, 3)) == Choice(3)
    assert choose(3, 4, Claim(3, 3), Claim(2)) == Choice(3), "what trains on older weights goes on with them meanwhile"


def test_it_keeps_the_engine_for_so_long_once_training_waits() -> None:
    evaluation = Claim(3, 3)
    assert choose(3, 4, evaluation, Claim(4, None, 99.5)) == Choice(3, 1.5)
    assert choose(3, 4, evaluation, Claim(4, None, 98.0)) == Choice(4)
    assert choose(3, 4, evaluation, Claim(4, None, 98.0), Claim(4, None, 99.5)) == Choice(4), "since the first waits"
    assert choose(3, 4, evaluation, Claim(4, None, 90.0), since=99.0) == Choice(3, 1.0), "or since it has the engine"


def test_a_paused_one_goes_on_while_nothing_else_is_to_be_made() -> None:
    assert choose(4, 4, Claim(3, 3, 99.9)) == Choice(3)
    assert choose(4, 4, Claim(3, 3, 99.9), Claim(2, 2, 99.0)) == Choice(2), "the one that has waited longest"
    left = PATIENCE * HOLD_S - 1.0
    assert choose(4, 4, Claim(3, 3, 99.0), Claim(4)) == Choice(4, left)
    assert choose(4, 4, Claim(3, 3, 99.0), Claim(4, 4)) == Choice(4, left), "another evaluation is something else"


def test_a_paused_one_does_not_wait_for_ever() -> None:
    waited = PATIENCE * HOLD_S
    assert choose(4, 4, Claim(3, 3, 100.0 - waited), Claim(4)) == Choice(3)
    assert choose(3, 4, Claim(3, 3), Claim(4, None, 100.0), since=100.0) == Choice(3, HOLD_S)


def test_an_evaluation_of_weights_to_come_moves_nothing() -> None:
    assert choose(4, 4, Claim(5, 5, 1.0)) == Choice(4)


versions = st.integers(0, 6)
claims = st.lists(
    st.builds(
        lambda oldest, exact, waits: Claim(oldest, oldest if exact else None, waits),
        versions,
        st.booleans(),
        st.none() | st.floats(0, 100),
    ),
    max_size=6,
)


@given(versions, versions, claims, st.floats(0, 100), st.floats(0.1, 10))
def test_what_is_chosen_is_wanted(
    current: int, published: int, wishes: list[Claim], since: float, hold_s: float
) -> None:
    """The version that runs, the newest, or one that a waiting evaluation is of; a later look is later than now."""
    choice = choose(current, published, *wishes, since=since, hold_s=hold_s)
    wanted = {claim.oldest for claim in wishes if claim.newest is not None}
    assert choice.version in {current, published} | wanted
    assert choice.recheck_s is None or (choice.version == current and choice.recheck_s > 0)
