"""Bundles hold every rank and engine, on machines that have the GPUs, and the event of a plan reads back equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import decode, encode
from schemas.envelope import enclose
from schemas.errors import InvalidValue
from schemas.placements import PackStrategy, PlacedRole, PlannedBundles
from serve_apps.deployment import placement_options
from slime_events.app.cli.render.text import placement_text
from slime_events.app.launch.run_placement import figures_of, plan_placement
from slime_events.core.planning.bundles import bundles_of, split_of
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.placement import GpuNode, count_ranks
from tests import made
from tests.golden.make_placement import placement as golden
from tests.planning.test_plan import plan, settings

needs = st.builds(
    Needs,
    ranks=st.integers(0, 8),
    engines=st.integers(0, 4),
    each=st.integers(1, 4),
    shared=st.just(False),
    together=st.sampled_from((1, 2, 4)),
)


def machines(*free: int) -> list[GpuNode]:
    return [GpuNode(f"node{n}", f"10.0.0.{n}", 8, count) for n, count in enumerate(free)]


@given(st.lists(st.integers(0, 8), max_size=4), needs)
def test_every_rank_has_a_bundle_on_a_machine_with_the_gpus(free: list[int], needed: Needs) -> None:
    found, counts = bundles_of(needed, machines(*free), on_gpus=True), count_ranks(free, needed.request)
    assert (found is None) == (counts is None)
    if found is None or counts is None:
        return
    ranks = [own for own in found if own.role is PlacedRole.RANK]
    assert sorted(rank for own in ranks for rank in own.members) == list(range(needed.ranks))
    taken = {own.nodes: len(own.members) for own in ranks}
    assert taken == {(f"node{n}",): count for n, count in enumerate(counts) if count}
    assert {own.strategy for own in ranks} <= {PackStrategy.STRICT_PACK if len(ranks) == 1 else PackStrategy.PACK}
    engines = [own for own in found if own.role is PlacedRole.ENGINE]
    assert [(own.members, own.gpus, own.nodes) for own in engines] == [
        (tuple(range(needed.engines)), float(needed.each), ())
    ][: needed.engines]


def test_a_tensor_parallel_group_is_on_one_machine_if_all_can_be() -> None:
    needed = Needs(ranks=8, engines=1, each=8, together=4)
    found = bundles_of(needed, machines(5, 8, 6), on_gpus=True)
    assert found is not None
    assert [(own.nodes, own.members) for own in found] == [
        (("node0",), (0, 1, 2, 3)),
        (("node2",), (4, 5, 6, 7)),
        ((), (0,)),
    ]
    placed = {"ranks": 8, "together": 4}
    assert split_of(made.placement(bundles=found, **placed)) == 0
    split = bundles_of(needed, machines(3, 8, 6), on_gpus=True)
    assert split is not None
    assert split_of(made.placement(bundles=split, **placed)) == 1
    assert [own.members for own in split] == [(4, 5, 6), (0, 1, 2, 3, 7), (0,)], "one group is whole"


def test_engines_that_share_gpus_are_on_the_machines_of_the_ranks() -> None:
    found = bundles_of(Needs(ranks=4, engines=4, shared=True), machines(2, 8, 2), on_gpus=True)
    assert found is not None
    ranks, engines = found
    assert (ranks.nodes, ranks.strategy, ranks.gpus) == (("node1",), PackStrategy.STRICT_PACK, 0.6)
    assert (engines.nodes, engines.gpus) == (("node1",), 0.4)


def test_on_cpus_nothing_is_reserved() -> None:
    found = bundles_of(Needs(ranks=2, engines=3), [], on_gpus=False)
    assert found == (
        PlannedBundles(role=PlacedRole.RANK, members=(0, 1), gpus=0.0),
        PlannedBundles(role=PlacedRole.ENGINE, members=(0, 1, 2), gpus=0.0),
    )
    assert placement_options(found[1]) == {"ray_actor_options": {"num_cpus": 0.0, "num_gpus": 0.0}}


def test_an_engine_gets_its_planned_bundle() -> None:
    engine = PlannedBundles(role=PlacedRole.ENGINE, members=(0,), gpus=0.4, nodes=("a", "b"))
    assert placement_options(engine) == {
        "ray_actor_options": {"num_cpus": 0.0, "num_gpus": 0.4},
        "placement_group_bundles": [{"GPU": 0.4}],
        "placement_group_strategy": "STRICT_PACK",
        "placement_group_bundle_label_selector": [{"ray.io/node-id": "in(a,b)"}],
    }


@pytest.mark.parametrize("engine", [{}, {"colocate": True}, {"rollout_num_gpus_per_engine": 2, "rollout_num_gpus": 2}])
def test_an_event_with_figures_reads_back_equal(engine: dict[str, object]) -> None:
    figures = figures_of(plan(settings(dict(engine), actor_num_gpus_per_node=4)))
    assert figures is not None
    assert figures.rank is not None
    assert figures.engine is not None
    assert figures.flow is not None
    envelope = enclose("run", made.placement(figures=figures), at=1, producer="launcher")
    assert decode(encode(envelope)) == envelope
    assert figures_of(plan(settings(), size=None)) is None


def test_a_placement_is_one_line() -> None:
    assert placement_text(golden()) == "2 ranks on 10.0.0.1, 1 engine of 2 GPUs"
    cpu = bundles_of(Needs(ranks=1, engines=2), [], on_gpus=False)
    assert placement_text(made.placement(bundles=cpu)) == "1 rank, 2 engines on the CPU"


def test_a_cpu_that_ray_gives_gpus_is_refused() -> None:
    with pytest.raises(InvalidValue, match="torch sees 0"):
        plan_placement(settings(), machines(2), 0)


def test_engines_that_run_already_take_no_gpus() -> None:
    needed = Needs(ranks=2, engines=0, external=3)
    assert needed.total == 2
    found = bundles_of(needed, machines(2), on_gpus=True)
    assert found is not None
    engines = [own for own in found if own.role is PlacedRole.ENGINE]
    assert [(own.members, own.gpus) for own in engines] == [((0, 1, 2), 0.0)]
    assert needed.refusal("2 GPUs", [2]) is None
    assert needed.refusal("1 GPU", [1]) is not None
