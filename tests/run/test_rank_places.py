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

from schemas.errors import DeadlineExceeded
from slime_events.app.launch.rank_places import RankPlaces, _address_key
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.placement import GpuNode
from slime_events.core.run.own_python import ROOT
from tests.run.cheap import LocalCluster, Parts, cheap_parts
from tests.run.tiny import Watching, run_with, tiny

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


def scene(folder: Path, *, shared: bool) -> None:
    """Print where everybody is, before and after a rank and an engine are lost. In a process of its own."""
    from ray import serve
    from ray.cluster_utils import Cluster as FakeMachines

    from slime_events.app.launch.cluster import Cluster
    from slime_events.app.launch.own_ray import make_small
    from slime_events.core.planning.needs import ENGINE_SHARE, RANK_SHARE

    make_small()  # which leaves loopback addresses as they are
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1"}
    # By itself Ray puts ranks on the driver's machine, which alone has room for an engine of four GPUs; and two engines
    # that share GPUs on the first one.
    needs = Needs(ranks=2, engines=2, shared=True) if shared else Needs(ranks=2, engines=1, each=4, together=2)
    head = small | {"num_gpus": 2 if shared else 4, "include_dashboard": False}
    machines = FakeMachines(initialize_head=True, head_node_args=head)
    if not shared:
        machines.add_node(**small, num_gpus=2)
    share, engine_gpus = (RANK_SHARE, ENGINE_SHARE) if shared else (1.0, 4)
    cluster = Cluster(machines.address)
    cluster.start()
    try:
        split = cluster.place_ranks(needs, share)
        options = {"num_cpus": 0, "num_gpus": engine_gpus}  # as of `rollout_app`
        engine = serve.deployment(Engine, num_replicas=needs.engines, ray_actor_options=options)
        app = engine.bind(str(folder / "engines"))
        deploying = threading.Thread(target=cluster.serve, args=(app, "engines"), daemon=True)
        deploying.start()  # in any order, as in a run
        ranks = [cluster.actor(Rank, f"rank{rank}", gpus=share, rank=rank) for rank in range(needs.ranks)]
        places = ray.get([rank.place.remote() for rank in ranks], timeout=WAIT_S)
        deploying.join(WAIT_S)
        first = engines_in(folder / "engines", needs.engines)[0]
        ray.kill(ranks[1])
        os.kill(first[0], signal.SIGKILL)
        ranks[1] = cluster.actor(Rank, "rank1-again", gpus=share, rank=1)
        again = ray.get([rank.place.remote() for rank in ranks], timeout=WAIT_S)
        engines = [place for _, *place in engines_in(folder / "engines", needs.engines + 1)]
        print("\n" + json.dumps([split, places, again, engines]))
    finally:
        cluster.stop()
        machines.shutdown()


@pytest.mark.real
@pytest.mark.parametrize("shared", [False, True])
def test_ranks_and_engines_find_places_and_come_back_to_them(tmp_path: Path, *, shared: bool) -> None:
    program = f"from tests.run.test_rank_places import *; scene(Path({str(tmp_path)!r}), shared={shared})"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    split, ranks, again, engines = json.loads(done.stdout.splitlines()[-1])
    assert split == 0
    assert len({machine for machine, _ in ranks}) == 1
    assert [int(gpu) for _, gpu in ranks] == list(range(len(ranks))), "neighbours in the order of their GPUs"
    assert again == ranks
    assert engines[-1] == engines[0], "the new engine is where the lost one was"
    taken = [(place[0], gpu) for place in engines[:-1] for gpu in place[1:]]
    assert len(set(taken)) == (2 if shared else 4), "no two have one GPU"
    assert ({tuple(rank) for rank in ranks} == set(taken)) == shared
    assert shared or not {tuple(rank) for rank in ranks} & set(taken)


@pytest.mark.parametrize("split", [0, 1])
def test_ranks_of_a_run_on_gpus_get_their_places_before_any_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: int
) -> None:
    seen: list[tuple[Needs, float]] = []

    def place_ranks(cluster: LocalCluster, needs: Needs, share: float) -> int:
        assert not cluster.actors
        seen.append((needs, share))
        return split

    monkeypatch.setattr(LocalCluster, "place_ranks", place_ranks, raising=False)
    engine, trainer = {"device": "cuda", "colocate": False}, {"actor_num_gpus_per_node": 2}
    settings = tiny(tmp_path, "placed", engine=engine, trainer=trainer, rollout={"num_rollout": 1})
    view = Watching()
    with cheap_parts(Parts(gpus=3)):
        asyncio.run(run_with(settings, view=view))
    assert seen == [(Needs(ranks=2, engines=1), 1.0)]
    assert sum("several machines" in note for note in view.notes) == split


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
        RankPlaces.reserve(Needs(ranks=2, engines=2, each=4), nodes, 1.0, lambda: is_over)
    assert [(group.bundles, group.homes) for group in requests] == [([{"GPU": 1.0}] * 2, ["small"] * 2)]
    assert removed == requests, "nothing of it stays"


def test_gpus_that_others_have_taken_since_they_were_counted_are_not_asked_for() -> None:
    with pytest.raises(DeadlineExceeded):
        RankPlaces.reserve(Needs(ranks=2, engines=1), [GpuNode("here", "10.0.0.1", 3, 2)], 1.0)


def test_machines_are_in_the_order_of_their_numbers() -> None:
    addresses = ["10.0.0.10", "10.0.0.9", "fd00::1", "9.0.0.1"]
    nodes = sorted((GpuNode("", address, 1, 1) for address in addresses), key=lambda node: _address_key(node.address))
    assert [node.address for node in nodes] == ["9.0.0.1", "10.0.0.9", "10.0.0.10", "fd00::1"]
