"""`Cluster`: what it makes of Ray, without one."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
from ray._private import auto_init_hook, services, worker
from ray._private.node import Node
from ray._private.ray_constants import PROCESS_TYPE_DASHBOARD_AGENT, PROCESS_TYPE_RUNTIME_ENV_AGENT
from ray.exceptions import RaySystemError
from ray.util.placement_group import NODE_ID_LABEL_KEY

from slime_events.app.launch.cluster import MODE_NAME, QUIET, Cluster
from slime_events.app.launch.own_ray import ONLOOKERS, PORTS, STAND_IN
from slime_events.app.launch.rank_places import cpu_nodes
from slime_events.app.launch.run_lock import MARK
from slime_events.app.launch.run_placement import plan_placement
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.run.own_python import ROOT
from slime_events.plugins.loader import load_function
from tests import made
from tests.plug_points.test_shadows import NAMES, shadows

THREADS = "OMP_NUM_THREADS"


class Late:
    """No actor any more."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the arguments of each start of Ray. What a start leaves behind is undone after the test."""
    begun: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", lambda **named: begun.append({**named, "threads": os.environ.get(THREADS)}))
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.setattr(services, "resolve_ip_for_localhost", services.resolve_ip_for_localhost)
    for name in (*ONLOOKERS, "start_raylet"):
        monkeypatch.setattr(Node, name, getattr(Node, name))
    command_of = services._build_python_executable_command_memory_profileable
    monkeypatch.setattr(services, "_build_python_executable_command_memory_profileable", command_of)
    monkeypatch.setattr("slime_events.app.launch.cluster.gpu_nodes", list)
    monkeypatch.setattr("slime_events.app.launch.cluster.cpu_nodes", list)
    monkeypatch.setattr(auto_init_hook, "enable_auto_connect", True)
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    return begun


def test_a_call_that_comes_after_ray_has_ended_starts_no_other(tmp_path: Path, begun: list[dict[str, Any]]) -> None:
    cluster = Cluster("127.0.0.1:1")
    cluster.start()
    with pytest.raises(RaySystemError, match="has not been started"):
        cluster.actor(Late, "late")
    assert [named["address"] for named in begun] == ["127.0.0.1:1"]


@pytest.mark.real
def test_files_of_the_working_directory_replace_no_package_in_a_worker(tmp_path: Path) -> None:
    """Nor anything else; and a user's module is found all the same."""
    own = shadows(tmp_path / "own")
    (own / "mine.py").write_text("def reward_func(args, sample):\n    return 1.0\n")
    program = (
        "from pathlib import Path\n"
        "from slime_events.app.launch.cluster import Cluster\n"
        "from tests.run.test_cluster import Imports\n"
        "import ray\n"
        "cluster = Cluster(None, Path('token'))\n"
        "cluster.start()\n"
        "try:\n"
        "    actor = cluster.actor(Imports, 'imports')\n"
        "    print(ray.get(actor.shadowed.remote()), ray.get(actor.loads.remote('mine.reward_func')))\n"
        "finally:\n"
        "    cluster.stop()\n"
    )
    words = [sys.executable, "-P", "-c", program]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=own, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.split("\n")[-2] == "[] mine", done.stderr


class Imports:
    """In a worker."""

    def shadowed(self) -> list[str]:
        """Names that lead to a file of the working directory."""
        here = str(Path.cwd())
        specs = {name: importlib.util.find_spec(name) for name in NAMES if name not in sys.modules}
        return [name for name, spec in specs.items() if spec and (spec.origin or "").startswith(here)]

    def loads(self, name: str) -> str:
        """The module of a user's function."""
        return load_function(name).__module__


def test_workers_of_our_own_ray_inherit_their_variables(begun: list[dict[str, Any]]) -> None:
    """Elsewhere only a runtime_env reaches them. Here it would have each of them import Ray twice."""
    Cluster(None).start()
    Cluster("127.0.0.1:1").start()
    assert ["runtime_env" in named for named in begun] == [False, True]
    assert [named["threads"] for named in begun] == ["1", None]
    assert begun[1]["runtime_env"]["env_vars"][THREADS] == "1"
    assert THREADS not in os.environ


def test_variables_of_the_network_and_the_launch_s_mark_reach_other_machines(
    begun: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"NCCL_IB_HCA": "mlx5", "GLOO_SOCKET_IFNAME": "ib0", MARK: "this launch"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    Cluster("127.0.0.1:1").start()
    variables = begun[0]["runtime_env"]["env_vars"]
    assert {name: variables.get(name) for name in own} == own


def test_a_process_of_the_launcher_s_machine_and_a_rank_on_cpus_have_their_node(
    begun: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[dict[str, Any]] = []

    def options(name: str, **placing: Any) -> Any:
        chosen.append(placing)
        return SimpleNamespace(remote=lambda: SimpleNamespace())

    monkeypatch.setattr(ray, "remote", lambda **_: lambda _: SimpleNamespace(options=options))
    own = "aa" * 28
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: own))
    nodes = [("10.0.0.2", "bb" * 28, True), ("10.0.0.1", own, True), ("10.0.0.3", "cc" * 28, False)]
    listed = [
        {"NodeManagerAddress": where, "NodeID": node, "Alive": alive, "Resources": {}} for where, node, alive in nodes
    ]
    monkeypatch.setattr(ray, "nodes", lambda: listed)
    two_ranks = TrainerSettings(actor_num_gpus_per_node=2)
    for address in ("10.0.0.1:6379", None):
        cluster = Cluster(address)
        homes, settings = cpu_nodes() if address else [], made.settings(trainer=two_ranks)
        cluster.place(plan_placement(settings, (), 0, homes))
        for placing in ({"here": True}, {"rank": 0}, {"rank": 1}, {"rank": 1}, {}):
            cluster.actor(Late, "late", **placing)
    first, second = ({"label_selector": {NODE_ID_LABEL_KEY: node}} for node in (own, "bb" * 28))
    elsewhere = {"fallback_strategy": [{"label_selector": {NODE_ID_LABEL_KEY: f"!{'bb' * 28}"}}]}
    assert chosen[:5] == [first, first, second, second | elsewhere, {}], "only a lost rank may go elsewhere"
    assert chosen[5:] == [{}] * 5, "its own Ray is on this machine alone"


@pytest.mark.parametrize("address", [None, "127.0.0.1:1"])
@pytest.mark.parametrize("of_the_user", [None, "disabled"])
def test_a_start_leaves_no_mode_to_other_rays(
    address: str | None, of_the_user: str | None, begun: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if of_the_user:
        monkeypatch.setenv(MODE_NAME, of_the_user)
    else:
        monkeypatch.delenv(MODE_NAME, raising=False)
    seen: list[str | None] = []

    def init(**_: object) -> None:
        seen.append(os.environ.get(MODE_NAME))
        os.environ.setdefault(MODE_NAME, "token")

    monkeypatch.setattr(ray, "init", init)
    Cluster(address).start()
    assert seen == [of_the_user]
    assert os.environ.get(MODE_NAME) == of_the_user


@pytest.mark.parametrize(
    ("gpus", "requested"),
    [
        (None, {"num_gpus": 0}),
        (0.0, {"num_gpus": 0}),
        (0.6, {"num_gpus": 0.6}),
    ],
)
def test_an_actor_without_gpus_sees_none(
    gpus: float | None, requested: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options_: dict[str, Any] = {}

    def remote(**options: Any) -> Any:
        options_.update(options)
        # What is called in the actor's process is called in this one.
        actor = SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda call, *words: call(None, *words)))
        handle = SimpleNamespace(remote=lambda: actor)
        return lambda _: SimpleNamespace(options=lambda name: handle)

    monkeypatch.setattr(ray, "remote", remote)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    Cluster(None).actor(Late, "late", gpus=gpus)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("" if gpus == 0 else "0,1")
    assert {name: options_[name] for name in options_ if name in ("num_gpus", "runtime_env")} == requested


def test_ray_s_node_waits_for_no_agent(
    begun: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[int] = []
    monkeypatch.setattr(Node, "start_raylet", lambda node: started.append(node._ray_params.runtime_env_agent_port))
    for _ in range(2):
        Cluster(None).start()
    node: Any = SimpleNamespace(_session_dir=str(tmp_path), _node_id="ab" * 28, _ray_params=SimpleNamespace())
    Node.start_raylet(node)
    assert len(started) == 1
    assert started[0] > 0
    assert {file.name.rpartition("_")[0]: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys(PORTS, "-1")
    command_of = services._build_python_executable_command_memory_profileable
    assert command_of(PROCESS_TYPE_DASHBOARD_AGENT, str(tmp_path)) == STAND_IN
    assert command_of(PROCESS_TYPE_RUNTIME_ENV_AGENT, str(tmp_path))[:2] == ["nice", "-n"]


def test_the_stand_in_ends_with_its_parent() -> None:
    shell = f"{shlex.join(STAND_IN)} > /dev/null & echo $!; sleep 1"  # it has to have seen its parent
    stand_in = psutil.Process(int(subprocess.run(["sh", "-c", shell], capture_output=True, check=True).stdout))
    stand_in.wait(timeout=60)
