"""Machines of ranks on CPUs."""

from __future__ import annotations

import pytest

from schemas.placements import PlacedRole, PlacementPlanned, PlannedMachine
from slime_events.core.planning.bundles import bundles_on_cpus
from slime_events.core.planning.homes import Home, Standing, engine_homes, homes_of, rank_homes, standing_of
from slime_events.core.planning.needs import Needs
from tests import made


@pytest.mark.parametrize(
    ("ranks", "nodes", "expected"),
    [
        (1, "abc", "a"),
        (2, "abc", "ab"),
        (3, "abc", "abc"),
        (4, "ab", "aabb"),
        (5, "abc", "aabbc"),
        (2, "a", "aa"),
        (0, "ab", ""),
    ],
)
def test_ranks_are_spread_over_machines_with_neighbours_together(ranks: int, nodes: str, expected: str) -> None:
    assert "".join(rank_homes(ranks, list(nodes))) == expected


def test_ranks_of_a_group_are_on_one_machine() -> None:
    assert "".join(rank_homes(6, list("ab"), together=2)) == "aaaabb"
    assert "".join(rank_homes(4, list("abc"), together=4)) == "aaaa"


def test_engines_begin_on_the_machine_that_has_the_fewest_ranks() -> None:
    assert "".join(engine_homes(4, list("abc"))) == "cbac"


def planned(*nodes: str, **needs: int) -> PlacementPlanned:
    machines = [PlannedMachine(node=node, address=f"10.0.0.{node}", gpus=0, free=0) for node in nodes]
    bundles = bundles_on_cpus(Needs(**({"ranks": 2, "engines": 3} | needs)), nodes)
    return made.placement(ranks=2, engines=3, machines=tuple(machines), bundles=bundles)


def test_a_plan_of_several_machines_gives_every_process_its_home() -> None:
    placed = planned("1", "2", "3")
    assert [home.node for home in homes_of(placed, PlacedRole.RANK)] == ["1", "2"]
    assert [home.address for home in homes_of(placed, PlacedRole.ENGINE)] == ["10.0.0.3", "10.0.0.2", "10.0.0.1"]
    assert [own.members for own in placed.bundles] == [(0,), (1,), (0,), (1,), (2,)]


def test_a_plan_of_one_machine_names_none() -> None:
    placed = planned("1")
    assert [(own.members, own.nodes) for own in placed.bundles] == [((0, 1), ()), ((0, 1, 2), ())]
    assert homes_of(placed, PlacedRole.RANK) == homes_of(placed, PlacedRole.ENGINE) == ()


@pytest.mark.parametrize(
    ("node", "alive", "expected"),
    [
        ("home", True, Standing.AT_HOME),
        ("other", True, Standing.MISPLACED),
        ("other", False, Standing.MOVED),
    ],
)
def test_a_process_elsewhere_is_misplaced_unless_its_machine_is_lost(
    node: str, alive: bool, expected: Standing
) -> None:
    rows = [{"NodeID": "home", "Alive": alive}, {"NodeID": "other", "Alive": True}]
    assert standing_of(Home("home", "10.0.0.1"), node, rows) is expected
    assert standing_of(Home("gone", "10.0.0.9"), "other", rows) is Standing.MOVED, "Ray has forgotten it"
