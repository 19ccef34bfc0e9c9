"""Engines of different sizes: places for all of them, wherever there are any, and no GPU twice."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.placements import PlacedRole
from slime_events.core.config.engine_groups import EngineGroup, ServedModel, ServerGroup
from slime_events.core.planning.bundles import bundles_of, bundles_on_cpus
from slime_events.core.planning.group_places import members_of, place_groups
from slime_events.core.planning.needs import Needs
from tests import made
from tests.planning.test_bundles import machines


def group(number: int, each: int, engines: int, *, reserved: bool = False) -> EngineGroup:
    return EngineGroup(
        model="m", number=number, checkpoint="", trained=True, gpus=each * engines, each=each, overrides={},
        reserved=reserved,
    )  # fmt: skip


SIZES = st.lists(st.tuples(st.sampled_from((1, 2, 4)), st.integers(1, 2)), min_size=1, max_size=3)


def fits_somehow(free: list[int], sizes: list[int], ranks: int) -> bool:
    """Try every machine for every engine. Ranks fit on any GPU that is left."""
    for homes in product(range(len(free)), repeat=len(sizes)):
        used = Counter[int]()
        for home, size in zip(homes, sizes, strict=True):
            used[home] += size
        if all(used[home] <= gpus for home, gpus in enumerate(free)) and sum(free) - sum(sizes) >= ranks:
            return True
    return False


@given(st.lists(st.integers(0, 8), min_size=1, max_size=3), SIZES, st.integers(0, 4))
def test_groups_have_places_whenever_any_exist(free: list[int], sizes: list[tuple[int, int]], ranks: int) -> None:
    groups = [group(number, each, engines) for number, (each, engines) in enumerate(sizes)]
    places = place_groups(free, groups, ranks)
    each = [member.each for member, _ in members_of(groups)]
    assert (places is not None) == fits_somehow(free, each, ranks)
    if places is not None:
        used = list(places.ranks)
        for home, size in zip(places.engines, each, strict=True):
            used[home] += size
        assert all(count <= gpus for count, gpus in zip(used, free, strict=True))
        assert sum(places.ranks) == ranks


def test_gpus_of_placeholders_stay_free() -> None:
    groups = [group(0, 2, 1), group(1, 1, 3, reserved=True)]
    assert place_groups((6,), groups, 1) is not None
    assert place_groups((5,), groups, 1) is None


def groups_of_two_models() -> Needs:
    settings = made.settings(
        engine={
            "sglang_models": {
                "actor": ServedModel(
                    server_groups=[ServerGroup(num_gpus=4, num_gpus_per_engine=4), ServerGroup(num_gpus=2)]
                ),
                "judge": ServedModel(update_weights=False, server_groups=[ServerGroup(num_gpus=1)]),
            }
        },
        trainer={"actor_num_gpus_per_node": 2},
    )
    return Needs.of(settings)


def test_bundles_of_groups_name_their_machine() -> None:
    needs = groups_of_two_models()
    assert (needs.total, needs.engines) == (9, 3)
    assert bundles_of(needs, machines(4, 4), on_gpus=True) is None
    bundles = bundles_of(needs, machines(4, 5), on_gpus=True)
    assert bundles is not None
    engines = [bundle for bundle in bundles if bundle.role is PlacedRole.ENGINE]
    assert [(bundle.group, bundle.gpus) for bundle in engines if bundle.group != "actor-1"] == [
        ("actor-0", 4.0),
        ("judge-0", 1.0),
    ]
    assert sorted(member for bundle in engines for member in bundle.members) == [0, 1, 2, 3]
    used = Counter[str]()
    for bundle in bundles:
        (node,) = bundle.nodes
        used[node] += int(bundle.gpus * len(bundle.members))
    assert used == {"node0": 4, "node1": 5}


def test_groups_on_cpus_are_spread_and_have_homes() -> None:
    needs = groups_of_two_models()
    alone = bundles_on_cpus(needs, ())
    assert [(bundle.group, bundle.members, bundle.gpus) for bundle in alone[1:]] == [
        ("actor-0", (0,), 0.0), ("actor-1", (1, 2), 0.0), ("judge-0", (3,), 0.0)
    ]  # fmt: skip
    spread = bundles_on_cpus(needs, ["node0", "node1"])
    planned = made.placement(bundles=spread, machines=())
    assert sum(len(bundle.members) for bundle in spread if bundle.role is PlacedRole.ENGINE) == 4
    assert planned.bundles == spread


@pytest.mark.parametrize(
    ("counts", "words"), [((8,), "needs 9"), ((4, 4, 1), None), ((3, 3, 3), "num_gpus_per_engine in")]
)
def test_too_few_gpus_are_refused_with_the_groups(counts: tuple[int, ...], words: str | None) -> None:
    refusal = groups_of_two_models().refusal("there are some", counts)
    assert refusal is None if words is None else words in str(refusal) and "judge-0" in str(refusal)
