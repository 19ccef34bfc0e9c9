"""`Roles`: what is still told of a role once its run has ended."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas.errors import TrainerError
from schemas.placements import PlacementPlanned
from slime_events.app.launch.roles import ARCHIVIST, ENGINES, GRADER, TRAINER, Roles
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.planning.bundles import bundles_of
from slime_events.core.planning.needs import ENGINE_SHARE, RANK_SHARE, Needs
from slime_events.core.planning.placement import GpuNode
from slime_events.core.run.process_environment import DETERMINISTIC
from tests import made


def placed(settings: TrainSettings) -> PlacementPlanned:
    """Return where the processes are, on one machine of 8 GPUs if the run uses GPUs."""
    needs, on_gpus = Needs.of(settings), settings.engine.device == "cuda"
    bundles = bundles_of(needs, [GpuNode("node", "10.0.0.1", 8, 8)], on_gpus=on_gpus)
    assert bundles is not None
    return made.placement(bundles=bundles)


@pytest.mark.parametrize("is_on", [False, True])
def test_a_deterministic_trainer_s_processes_alone_have_its_variables(*, is_on: bool) -> None:
    variables: dict[str, Any] = {}

    def actor(cls: type, name: str, *_: Any, env: Any, **__: Any) -> Any:
        variables[name.split("-")[0]] = env
        return SimpleNamespace(run=SimpleNamespace(remote=lambda *_: SimpleNamespace(future=concurrent.futures.Future)))

    trainer = TrainerSettings(deterministic_mode=is_on, actor_num_gpus_per_node=2)
    cluster: Any = SimpleNamespace(actor=actor)
    address: Any = SimpleNamespace(run="sim", folder="")

    async def start() -> None:
        settings = made.settings(trainer=trainer)
        roles = Roles(cluster, settings, address, placed(settings))
        for role in (GRADER, TRAINER):
            roles.start(role)

    asyncio.run(start())
    assert variables["grader"] is None
    assert variables["rank1"] == variables["trainer"]
    assert set(variables["trainer"]) == (set(DETERMINISTIC) if is_on else set())


async def fail_around_the_end(*, is_late: bool) -> None:
    end: concurrent.futures.Future[Any] = concurrent.futures.Future()
    run = SimpleNamespace(remote=lambda *_: SimpleNamespace(future=lambda: end))
    cluster: Any = SimpleNamespace(actor=lambda *_, **__: SimpleNamespace(run=run))
    address: Any = SimpleNamespace(run="sim")
    roles = Roles(cluster, TrainSettings(), address, placed(TrainSettings()))
    roles.start(GRADER)
    if is_late:
        roles.let_go()
    end.set_exception(TrainerError("its disk is full"))
    await asyncio.wait([roles.tasks[GRADER]], timeout=60)
    if not is_late:
        roles.let_go()
    await asyncio.sleep(0)  # what is called at a role's end is called now


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
async def test_a_role_that_fails_around_the_end_of_its_run_prints_nothing(
    caplog: pytest.LogCaptureFixture, *, is_late: bool
) -> None:
    await fail_around_the_end(is_late=is_late)
    gc.collect()
    assert "its disk is full" not in caplog.text


class Placing:
    """Replace a cluster: note the share of a GPU of each process, in the order of their starts."""

    def __init__(self) -> None:
        self.placed: list[tuple[str, float | None]] = []
        self.nice: dict[str, int] = {}
        self.ranks: dict[str, int] = {}
        self.here: set[str] = set()

    def actor(
        self,
        cls: type,
        name: str,
        *_: Any,
        gpus: float | None = None,
        nice: int = 0,
        rank: int | None = None,
        here: bool = False,
        **__: Any,
    ) -> Any:
        self.placed.append((name.partition("-")[0], gpus))
        if here:
            self.here.add(self.placed[-1][0])
        if rank is not None:
            self.ranks[self.placed[-1][0]] = rank
        self.nice[self.placed[-1][0]] = nice
        call = SimpleNamespace(remote=lambda *_: SimpleNamespace(future=concurrent.futures.Future))
        return SimpleNamespace(run=call, stop=call)

    def serve(self, apps: Sequence[float], run: str) -> None:
        self.placed += [("engines", app) for app in apps]


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({"device": "cuda"}, [("rank1", 1.0), ("trainer", 1.0), ("engines", 1.0)]),
        ({"device": "cuda", "rollout_num_gpus_per_engine": 2}, [("rank1", 1.0), ("trainer", 1.0), ("engines", 2.0)]),
        ({"device": "cuda", "colocate": True}, [("rank1", 0.6), ("trainer", 0.6), ("engines", 0.4)]),
        ({"device": "cpu"}, [("rank1", 0.0), ("trainer", 0.0), ("engines", 0.0)]),
        ({"device": "auto", "colocate": True}, [("rank1", None), ("trainer", None), ("engines", 0.0)]),
    ],
)
async def test_what_each_process_has_of_a_gpu(
    engine: dict[str, Any], expected: list[tuple[str, float | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_apps.deployment.rollout_app", lambda *_, bundle, **__: bundle.gpus)
    monkeypatch.setattr("slime_events.app.launch.roles.HEAD_START_S", 0.0)
    settings = msgspec.convert({"engine": engine, "trainer": {"actor_num_gpus_per_node": 2}}, TrainSettings)
    cluster: Any = Placing()
    address: Any = SimpleNamespace(run="sim", folder="nowhere", models={})
    roles = Roles(cluster, settings, address, placed(settings))
    roles.start_all()
    await asyncio.wait([roles.tasks[ENGINES]], timeout=60)
    heavy = {name: gpus for name, gpus in cluster.placed if name in dict(expected)}
    assert sorted(heavy.items()) == sorted(expected)
    assert cluster.ranks == {"rank1": 1, "trainer": 0}, "each has a place, and nobody else"
    others = {name for name, _ in cluster.placed} - {"rank1", "trainer", "engines"}
    assert cluster.here == others >= {"conductor", "grader", "archivist", "inbox"}, "their files are the launcher's"
    assert all(not gpus for name, gpus in cluster.placed if name not in heavy)
    yields = settings.engine.device != "cuda"
    assert [bool(cluster.nice[name]) for name in ("trainer", "rank1")] == [yields, yields], "no GPU waits for a thread"
    roles.let_go()


async def test_each_group_is_a_deployment_of_its_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def note(kind: str, settings: EngineSettings, group: str) -> Any:
        return kind, group, settings.hf_checkpoint, settings.sglang, settings.rollout_num_gpus_per_engine

    monkeypatch.setattr(
        "serve_apps.deployment.rollout_app",
        lambda _, settings, *__, bundle, **___: note("engines", settings, bundle.group),
    )
    monkeypatch.setattr(
        "serve_apps.model_deployment.model_app",
        lambda _, settings, group, **__: note("model", settings.of_group(group), group.name),
    )
    models = {
        "actor": {"server_groups": [{"num_gpus": 2, "overrides": {"context_length": 9}}, {"num_gpus": 1}]},
        "judge": {"model_path": "/judge", "server_groups": [{"num_gpus": 2, "num_gpus_per_engine": 2}]},
    }
    engine = {"device": "cpu", "hf_checkpoint": "/m", "sglang_models": models, "sglang": {"log_level": "error"}}
    settings = msgspec.convert({"engine": engine}, TrainSettings)
    cluster: Any = Placing()
    address: Any = SimpleNamespace(run="sim", folder="nowhere", models={"judge": "127.0.0.1:1"})
    roles = Roles(cluster, settings, address, placed(settings))
    roles.start_all()
    await asyncio.wait([roles.tasks[ENGINES]], timeout=60)
    assert [app for name, app in cluster.placed if name == "engines"] == [
        ("engines", "actor-0", "/m", {"log_level": "error", "context_length": 9}, 1),
        ("engines", "actor-1", "/m", {"log_level": "error"}, 1),
        ("model", "judge-0", "/judge", {"log_level": "error"}, 2),
    ]
    assert "models" in cluster.here, "the router listens on the launcher's machine"
    roles.let_go()


@pytest.mark.parametrize("engine", [{}, {"device": "cpu", "colocate": True}, {"colocate": True}], ids=str)
async def test_who_is_not_waited_for_starts_later_and_at_once_when_asked_to_end(
    monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any]
) -> None:
    monkeypatch.setattr("serve_apps.deployment.rollout_app", lambda *_, **__: 0.0)
    monkeypatch.setattr("slime_events.app.launch.roles.HEAD_START_S", 60.0)
    cluster: Any = Placing()
    address: Any = SimpleNamespace(run="sim", folder="nowhere", models={})
    settings = msgspec.convert({"engine": engine}, TrainSettings)
    roles = Roles(cluster, settings, address, placed(settings))
    roles.start_all()
    await asyncio.wait([roles.tasks[ENGINES]], timeout=60)
    assert {name for name, _ in cluster.placed} == {"conductor", "engines"}
    waiting = roles.tasks[GRADER]
    assert not waiting.done()
    roles.stop(ARCHIVIST)
    assert {name for name, _ in cluster.placed} == {"conductor", "engines", "archivist"}
    roles.let_go()
    await asyncio.wait([waiting], timeout=60)
    assert waiting.cancelled()
    assert {name for name, _ in cluster.placed} == {"conductor", "engines", "archivist"}


async def test_who_starts_later_is_watched_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_apps.deployment.rollout_app", lambda *_, **__: 0.0)
    monkeypatch.setattr("slime_events.app.launch.roles.HEAD_START_S", 0.01)
    cluster: Any = Placing()
    address: Any = SimpleNamespace(run="sim", folder="nowhere", models={})
    roles = Roles(cluster, TrainSettings(), address, placed(TrainSettings()))
    roles.start_all()
    waiting = roles.tasks[GRADER]
    await asyncio.wait([waiting], timeout=60)
    assert roles.tasks[GRADER] is not waiting
    assert not roles.tasks[GRADER].done()
    roles.let_go()


def test_two_ranks_never_fit_on_one_gpu_and_a_rank_and_an_engine_do() -> None:
    assert 2 * RANK_SHARE > 1
    assert RANK_SHARE + ENGINE_SHARE <= 1
