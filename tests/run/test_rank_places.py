"""Ranks and engines on a Ray of two machines with GPUs that are not there: all find places, and come back to them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray

from schemas.errors import DeadlineExceeded, InvalidValue
from schemas.placements import PlacementPlanned
from slime_events.app.launch.rank_places import RankPlaces
from slime_events.app.launch.ray_machines import _address_key
from slime_events.core.planning.bundles import bundles_of
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.placement import GpuNode
from slime_events.core.run.own_python import ROOT
from tests import made
from tests.run.cheap import LocalCluster, Parts, cheap_parts
from tests.run.tiny import Watching, events_of, run_with, tiny

WAIT_S = 60.0


def own_place() -> list[str]:
    """In a worker: its machine and its GPUs, as Ray says it and as CUDA would."""
    context = ray.get_runtime_context()
    own = [str(gpu) for gpu in context.get_accelerator_ids()["GPU"]]
    assert os.environ["CUDA_VISIBLE_DEVICES"].split(",") == own
    return [context.get_node_id(), *own]


class Rank:
    """Replace a rank."""

    def place(self) -> list[str]:
        return own_place()


class Engine:
    """Replace an engine's replica. It writes its process and its place where all do."""

    def __init__(self, file: str) -> None:
        with open(file, "a") as opened:
            opened.write(json.dumps([os.getpid(), *own_place()]) + "\n")

    def __call__(self) -> None:
        """Serve wants something that can be called."""


def engines_in(file: Path, count: int) -> list[list[Any]]:
    """Return what engines have written, once `count` have."""
    until = time.monotonic() + WAIT_S
    while len(lines := file.read_text().splitlines() if file.exists() else []) < count:
        assert time.monotonic() < until, f"{len(lines)} of {count} engines have a place"
        time.sleep(0.1)
    return [json.loads(line) for line in lines]


SCENES = {
    # By itself Ray puts ranks on the driver's machine, which alone has room for an engine of four GPUs.
    "beside": ((4, 2), Needs(ranks=2, engines=1, each=4, together=2)),
    # By itself Ray puts both engines on the first GPU.
    "shared": ((2,), Needs(ranks=2, engines=2, shared=True)),
    "several machines": ((2, 2, 3), Needs(ranks=4, engines=1, each=2, together=2)),
}
"""GPUs of each machine, and the run."""


def scene(name: str, folder: Path) -> None:
    """Print where everybody is, before and after a rank and an engine are lost. In a process of its own."""
    from ray import serve
    from ray.cluster_utils import Cluster as FakeMachines

    from serve_apps.deployment import placement_options
    from slime_events.app.launch.cluster import Cluster
    from slime_events.app.launch.own_ray import make_small

    make_small()  # which leaves loopback addresses as they are
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1"}
    counts, needs = SCENES[name]
    head = small | {"num_gpus": counts[0], "include_dashboard": False}
    machines = FakeMachines(initialize_head=True, head_node_args=head)
    for count in counts[1:]:
        machines.add_node(**small, num_gpus=count)
    cluster = Cluster(machines.address)
    cluster.start()
    try:
        planned = planned_for(needs, cluster.nodes)
        cluster.place(planned)
        engine_bundle = planned.bundles[-1]
        engine = serve.deployment(Engine, num_replicas=needs.engines, **placement_options(engine_bundle))
        app = engine.bind(str(folder / "engines"))
        deploying = threading.Thread(target=cluster.serve, args=([app], "engines"), daemon=True)
        deploying.start()  # in any order, as in a run
        ranks = [cluster.actor(Rank, f"rank{rank}", gpus=needs.rank_gpus, rank=rank) for rank in range(needs.ranks)]
        places = ray.get([rank.place.remote() for rank in ranks], timeout=WAIT_S)
        deploying.join(WAIT_S)
        first = engines_in(folder / "engines", needs.engines)[0]
        ray.kill(ranks[1])
        os.kill(first[0], signal.SIGKILL)
        ranks[1] = cluster.actor(Rank, "rank1-again", gpus=needs.rank_gpus, rank=1)
        again = ray.get([rank.place.remote() for rank in ranks], timeout=WAIT_S)
        engines = [place for _, *place in engines_in(folder / "engines", needs.engines + 1)]
        homes = [node for own in planned.bundles[:-1] for node in own.nodes for _ in own.members]
        print("\n" + json.dumps([homes, places, again, engines]))
    finally:
        cluster.stop()
        machines.shutdown()


def planned_for(needs: Needs, nodes: list[GpuNode]) -> PlacementPlanned:
    bundles = bundles_of(needs, nodes, on_gpus=True)
    assert bundles is not None
    return made.placement(device="cuda", ranks=needs.ranks, together=needs.together, bundles=bundles)


@pytest.mark.real
@pytest.mark.parametrize("name", SCENES)
def test_ranks_and_engines_find_places_and_come_back_to_them(tmp_path: Path, name: str) -> None:
    program = f"from tests.run.test_rank_places import *; scene({name!r}, Path({str(tmp_path)!r}))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    homes, ranks, again, engines = json.loads(done.stdout.splitlines()[-1])
    counts, needs = SCENES[name]
    assert [machine for machine, _ in ranks] == homes, "on the planned machines"
    groups = [ranks[start : start + needs.together] for start in range(0, needs.ranks, needs.together)]
    assert all(len({machine for machine, _ in group}) == 1 for group in groups)
    for machine in set(homes):
        own = [int(gpu) for place, gpu in ranks if place == machine]
        assert own == sorted(set(own)), "neighbours in the order of their GPUs"
    assert again == ranks
    assert engines[-1] in engines[:-1], "the new engine is where the lost one was"
    assert all(len(gpus) == needs.each for _, *gpus in engines)
    taken = [(place[0], gpu) for place in engines[:-1] for gpu in place[1:]]
    assert len(set(taken)) == needs.engines * needs.each, "no two have one GPU"
    assert ({tuple(rank) for rank in ranks} == set(taken)) == needs.shared
    assert needs.shared or not {tuple(rank) for rank in ranks} & set(taken)
    assert len({*taken, *map(tuple, ranks)}) <= sum(counts)


@pytest.mark.parametrize(("gpus", "split"), [((3,), 0), ((1, 1, 1), 1)])
def test_a_run_on_gpus_records_its_places_before_any_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: tuple[int, ...], split: int
) -> None:
    placed: list[PlacementPlanned] = []

    def place(cluster: LocalCluster, planned: PlacementPlanned) -> None:
        assert not cluster.actors
        placed.append(planned)

    monkeypatch.setattr(LocalCluster, "place", place)
    trainer = {"actor_num_gpus_per_node": 2, "tensor_model_parallel_size": 2}
    engine = {"device": "cuda", "colocate": False}
    settings = tiny(tmp_path, "placed", engine=engine, trainer=trainer, rollout={"num_rollout": 1})
    view = Watching()
    with cheap_parts(Parts(gpus=gpus)):
        asyncio.run(run_with(settings, view=view))
    events = [recorded.envelope.event for recorded in events_of(tmp_path / "runs" / "placed")]
    assert events[1] == placed[0]
    assert sum(isinstance(event, PlacementPlanned) for event in events) == len(placed) == 1
    assert [len(own.members) for own in placed[0].bundles] == [1, 1, 1] if split else [2, 1]
    assert sum("several machines" in note for note in view.notes) == split


def test_a_run_with_too_few_gpus_ends_with_the_changes_that_fit_and_leaves_nothing(tmp_path: Path) -> None:
    engine = {"device": "cuda", "colocate": False, "rollout_num_gpus": 4}
    settings = tiny(tmp_path, "large", engine=engine, trainer={"actor_num_gpus_per_node": 2})
    with cheap_parts(Parts(gpus=(2, 2))), pytest.raises(InvalidValue) as caught:
        asyncio.run(run_with(settings))
    assert [
        word for word in ("needs 6", "3 machines of 2 GPUs", "--rollout-num-gpus 2") if word not in str(caught.value)
    ] == []
    assert not (tmp_path / "runs" / "large").exists()


class Waiting:
    """Replace a placement group that waits for other jobs."""

    def __init__(self, bundles: list[dict[str, float]], strategy: str, bundle_label_selector: list[Any]) -> None:
        self.bundles, self.homes = bundles, [label["ray.io/node-id"] for label in bundle_label_selector]

    def wait(self, seconds: float) -> bool:
        return False


@pytest.mark.parametrize("is_over", [False, True], ids=["its time is over", "the run ends"])
def test_places_that_ray_does_not_give_are_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    requests: list[Waiting] = []
    removed: list[Any] = []

    def ask(*words: Any, **named: Any) -> Waiting:
        requests.append(Waiting(*words, **named))
        return requests[-1]

    monkeypatch.setattr(ray.util, "placement_group", ask)
    monkeypatch.setattr(ray.util, "remove_placement_group", removed.append)
    if not is_over:
        monkeypatch.setattr("slime_events.app.launch.rank_places.PLACE_S", 0.0)
    nodes = [GpuNode("large", "10.0.0.1", 8, 8), GpuNode("small", "10.0.0.2", 2, 2)]
    with pytest.raises(DeadlineExceeded):
        RankPlaces.reserve(planned_for(Needs(ranks=2, engines=2, each=4), nodes), lambda: is_over)
    assert [(group.bundles, group.homes) for group in requests] == [([{"GPU": 1.0}] * 2, ["small"] * 2)]
    assert removed == requests, "nothing of it stays"


def test_a_plan_without_ranks_on_gpus_reserves_nothing() -> None:
    assert RankPlaces.reserve(planned_for(Needs(ranks=0, engines=1), [GpuNode("here", "10.0.0.1", 1, 1)])) is None
    assert RankPlaces.reserve(made.placement(bundles=bundles_of(Needs(2, 1), [], on_gpus=False))) is None


def test_machines_are_in_the_order_of_their_numbers() -> None:
    addresses = ["10.0.0.10", "10.0.0.9", "fd00::1", "9.0.0.1"]
    nodes = sorted((GpuNode("", address, 1, 1) for address in addresses), key=lambda node: _address_key(node.address))
    assert [node.address for node in nodes] == ["9.0.0.1", "10.0.0.9", "10.0.0.10", "fd00::1"]
