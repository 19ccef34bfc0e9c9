"""Folders and stores that each machine of a run must see, and the machines that do not."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from msgspec.structs import replace

from schemas.errors import InvalidValue
from slime_events.app.launch.node_probe import check_nodes, nats_problem, problems_here
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.run.run_address import RunAddress
from slime_events.core.run.shared_places import (
    PlaceKind,
    SharedPlace,
    marked,
    model_digest,
    places_of,
    problem_of,
    require_places,
    written_urls,
)
from storage.jetstream.address import NatsAddress
from tests import made


def model(folder: Path, size: int = 8) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"size": size}))
    (folder / "model.safetensors").write_bytes(b"0" * size)
    return folder


def written(url: str | Path) -> SharedPlace:
    return SharedPlace(flag="--runs-dir", url=str(url), kind=PlaceKind.WRITTEN, name=".shared-r")


def read(url: Path) -> SharedPlace:
    return SharedPlace(flag="--hf-checkpoint", url=str(url), kind=PlaceKind.READ)


def test_places_in_the_run_s_folder_are_one_and_a_model_in_two_flags_too(tmp_path: Path) -> None:
    base, folder = str(model(tmp_path / "base")), str(tmp_path / "runs" / "r")
    settings = made.settings(
        engine=EngineSettings(hf_checkpoint=base),
        trainer=TrainerSettings(hf_checkpoint=base, ref_load=base, load="/nowhere", save="s3://b/saved"),
    )
    urls = [("--runs-dir", f"{folder}/weights"), ("--blob-url", f"{folder}/blobs"), ("--save", "s3://b/saved")]
    places = {(place.flag, place.url, place.name) for place in places_of(settings, folder, urls)}
    assert places == {
        ("--runs-dir", folder, "shared"),
        ("--save", "s3://b/saved", f"shared-{settings.run.run}"),
        ("--hf-checkpoint", base, ""),
    }


@pytest.mark.parametrize(("saves", "save"), [(None, None), (2, None), (2, "/saved"), (None, "/saved")])
def test_a_run_without_checkpoints_needs_no_folder_for_them(saves: int | None, save: str | None) -> None:
    settings = made.settings(trainer=TrainerSettings(save_interval=saves, save=save))
    urls = written_urls(settings, "s3://b/weights/r", "s3://b/blobs", "/runs/r/checkpoints")
    assert [url for _, url in urls[2:]] == ([save or "/runs/r/checkpoints"] if saves else [])
    assert [place.url for place in places_of(settings, "/runs/r", urls)] == [
        *("s3://b/weights/r", "s3://b/blobs"),
        *([save or "/runs/r"] if saves else []),
    ][::-1]


@pytest.mark.parametrize("url", ["{}", "file://{}", "memory://{}"])
def test_a_place_is_shared_if_the_newest_text_is_there(tmp_path: Path, url: str) -> None:
    place = marked(written(url.format(tmp_path)), "first")
    assert problem_of(place, 0) is None
    again = marked(place, "second")
    assert problem_of(again, 0) is None
    assert "--runs-dir" in str(problem_of(place, 0)), "a text of an earlier launch says nothing"
    elsewhere = replace(again, url=f"{again.url}-other")
    assert f"{again.url}-other" in str(problem_of(elsewhere, 0))


def test_a_file_that_shows_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = replace(written(tmp_path), expected="text")
    monkeypatch.setattr("slime_events.core.run.shared_places.time.sleep", lambda _: marked(place, "text"))
    assert problem_of(place, 60) is None


def test_a_model_must_be_there_and_the_same(tmp_path: Path) -> None:
    place = marked(read(model(tmp_path / "here")), "")
    assert place.expected == model_digest(tmp_path / "here")
    assert problem_of(replace(place, url=str(model(tmp_path / "copy")))) is None
    assert "another model" in str(problem_of(replace(place, url=str(model(tmp_path / "other", 9)))))
    missing = replace(place, url=str(tmp_path / "nowhere"))
    with pytest.raises(InvalidValue, match=r"--hf-checkpoint .*nowhere does not exist"):
        require_places([place, missing])


def test_a_log_that_a_machine_does_not_reach_is_named() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:  # any address of this machine
        port = server.getsockname()[1]
        assert "127.0.0.1 is this machine only" in str(nats_problem(f"nats://127.0.0.1:{port}", "10.0.0.6"))
        assert nats_problem(f"nats://127.0.0.1:{port}", "127.0.0.2") is None, "a Ray on loopback is one machine"
        own = f"nats://0.0.0.0:{port}"
        assert nats_problem(own, "10.0.0.6") is None
        some = f"nats://me:${{SECRET}}@0.0.0.0:1,{own}"
        assert nats_problem(some, "10.0.0.6") is None, "one of the nodes is enough"
    assert f"0.0.0.0:{port}" in str(nats_problem(own, "10.0.0.6"))


def run_address(*places: SharedPlace) -> RunAddress:
    nats = NatsAddress(url="nats://127.0.0.1:4222")
    return RunAddress(
        run="r", nats=nats, folder="", blob_url="", archive_url="", weights_url="", shared=places, secrets={"A": "b"}
    )


def test_problems_of_a_machine_have_the_log_and_each_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "")
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.6")
    monkeypatch.setattr("slime_events.core.run.shared_places.LATE_S", 0.0)
    here = marked(written(tmp_path), "text")
    log, place = problems_here(run_address(here, replace(read(tmp_path / "nowhere"), expected="x")))
    assert "127.0.0.1" in log
    assert "nowhere" in place


class Nodes:
    """Replace Ray: a machine answers with its problems, or raises. `asked` has the nodes of all calls."""

    dying: frozenset[str] = frozenset()
    """Machines that Ray declares lost when they are asked."""

    def __init__(self, answers: dict[str, list[str] | Exception], gpus: tuple[str, ...] = ()) -> None:
        self.answers, self.gpus, self.calls, self.lost = answers, gpus, list[str](), {"d"}

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": node * 56,
                "NodeManagerAddress": node,
                "Alive": node not in self.lost,
                "Resources": {"GPU": node in self.gpus},
            }
            for node in ("a", *self.answers, "d")
        ]

    def remote(self, **_: object) -> Callable[[object], Any]:
        def options(label_selector: dict[str, str]) -> Any:
            return SimpleNamespace(remote=lambda _: next(iter(label_selector.values()))[0])

        return lambda _: SimpleNamespace(options=options)

    def get(self, node: str, timeout: float) -> list[str]:
        self.calls.append(node)
        self.lost |= self.dying & {node}
        answer = self.answers[node]
        if isinstance(answer, Exception):
            raise answer
        return answer


def asked_of(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, *, of_gpus: bool = False) -> None:
    for name in ("nodes", "remote", "get"):
        monkeypatch.setattr(ray, name, getattr(nodes, name))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "a" * 56))
    check_nodes(run_address(), of_gpus=of_gpus)


def test_each_machine_that_sees_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    silent, broken = ray.exceptions.GetTimeoutError(), ray.exceptions.RaySystemError("no module")
    nodes = Nodes({"1": [], "2": ["--blob-url x"], "3": silent, "4": broken})
    with pytest.raises(InvalidValue) as caught:
        asked_of(nodes, monkeypatch)
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["machine 2", "machine 3", "machine 4"]
    assert "--blob-url x" in lines[0]
    assert "no module" in lines[2]
    assert nodes.calls == ["1", "2", "3", "4"], "all but this machine and the one that is gone"


def test_a_machine_that_ray_loses_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray counts a lost machine as alive for a while, also beside the same machine that is back."""
    gone = ray.exceptions.TaskUnschedulableError("the node does not exist any more")
    nodes = Nodes({"1": gone, "2": []})
    nodes.dying = frozenset("1")
    asked_of(nodes, monkeypatch)
    assert nodes.calls == ["1", "2"]
    with pytest.raises(InvalidValue, match="machine 1"):
        asked_of(Nodes({"1": gone, "2": []}), monkeypatch)


def test_only_machines_with_gpus_matter_to_a_run_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes({"b": ["wrong"], "c": []}, gpus=("c",))
    asked_of(nodes, monkeypatch, of_gpus=True)
    assert nodes.calls == ["c"]
