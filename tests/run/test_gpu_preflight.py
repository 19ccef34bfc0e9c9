"""Whether a run goes to GPUs: decided from facts, and never the CPU in silence."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.errors import InvalidValue
from slime_events.app.launch import gpu_facts
from slime_events.app.launch.gpu_preflight import check_count, check_listed, device_for
from slime_events.core.config.derivations import on_device
from slime_events.core.config.engine import Device
from slime_events.core.config.settings import TrainSettings
from slime_events.core.machine.gpus import KERNELS, NOT_INSTALLED, Machine
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.placement import GpuNode, count_ranks
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import run_with, tiny

FILES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
GOOD = Machine(
    files=FILES, driver="580.65.06", probed=True, torch="2.14.1", cuda="13.0", seen=("NVIDIA H100", "NVIDIA H100")
)
BLIND = replace(GOOD, seen=())
ONE_EACH = Needs(ranks=1, engines=1)

machines = st.builds(
    Machine,
    files=st.sets(st.sampled_from([*FILES, "/dev/dxg"])).map(tuple),
    driver=st.sampled_from([None, "535.104.05", "580.65.06"]),
    ray=st.none() | st.integers(0, 4),
    visible=st.none() | st.sampled_from(["", "-1", "0", "0,1"]),
    probed=st.just(True),
    torch=st.none() | st.sampled_from(["2.13.0+cpu", "2.14.1"]),
    broken=st.dictionaries(st.sampled_from(KERNELS), st.sampled_from([NOT_INSTALLED, "OSError: libcuda.so.1"])),
    cuda=st.none() | st.sampled_from(["12.8", "13.0", "99.0"]),
    seen=st.lists(st.just("NVIDIA H100"), max_size=4).map(tuple),
)
needs = st.builds(Needs, ranks=st.integers(0, 4), engines=st.integers(0, 4), each=st.integers(1, 4))


@pytest.mark.parametrize(
    ("machine", "named"),
    [
        (replace(BLIND, torch="2.13.0+cpu", cuda=None), ["2 GPUs", "sees 0", "2.13.0+cpu", "SET=gpu"]),
        (replace(BLIND, cuda=None), ["sees 0", "without CUDA", "SET=gpu"]),
        (replace(BLIND, torch=None, torch_error="it cannot be imported"), ["sees 0", "cannot be imported", "SET=gpu"]),
        (replace(BLIND, driver="535.104.05"), ["sees 0", "535.104.05", "580", "13.0", "Update the driver"]),
        (replace(BLIND, visible=""), ["sees 0", "CUDA_VISIBLE_DEVICES", "Unset"]),
        (replace(BLIND, torch_error="RuntimeError: no luck"), ["sees 0", "no luck", "nvidia-smi"]),
        (replace(BLIND, name="10.0.0.7", ray=8), ["Ray counts 8 GPUs on 10.0.0.7", "sees 0"]),
        (replace(GOOD, broken={"sgl_kernel": NOT_INSTALLED}), ["2 GPUs", "sgl_kernel", "SET=gpu"]),
        (replace(GOOD, broken={"triton": "OSError: libcuda.so.1"}), ["triton", "libcuda.so.1"]),
    ],
)
def test_what_is_in_the_way_of_gpus_is_said_with_what_to_do(machine: Machine, named: list[str]) -> None:
    with pytest.raises(InvalidValue) as caught:
        device_for("auto", ONE_EACH, [machine])
    assert [word for word in [*named, "--device cpu"] if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    "before",
    [
        replace(BLIND, probed=False, torch="2.13.0+cpu"),
        replace(GOOD, probed=False, broken={"sgl_kernel": NOT_INSTALLED}),
    ],
)
def test_what_package_files_tell_is_said_before_torch_is_imported(before: Machine) -> None:
    with pytest.raises(InvalidValue):
        check_listed(ONE_EACH, [before])


def test_a_machine_that_lists_gpus_and_nothing_else_is_left_for_torch_to_tell() -> None:
    check_listed(ONE_EACH, [replace(GOOD, probed=False, seen=(), cuda=None)])
    check_listed(ONE_EACH, [Machine(files=("/dev/dxg",), torch="2.14.1")])


@pytest.mark.parametrize(
    ("needed", "counts", "named"),
    [
        (Needs(ranks=4, engines=2), [2], ["needs 6", "4 trainer ranks", "2 engines of 1 GPU", "--colocate"]),
        (Needs(ranks=1, engines=2, each=2), [4], ["needs 5"]),
        (Needs(ranks=4, engines=2, shared=True), [2], ["needs 4", "sharing"]),
        (Needs(ranks=1, engines=1, each=2, shared=True), [8], ["--colocate", "2 GPUs"]),
        (
            Needs(ranks=2, engines=1, each=4),
            [3, 3],
            ["2 trainer ranks", "1 engine of 4 GPUs", "one machine", "0 of 1", "--rollout-num-gpus-per-engine"],
        ),
    ],
)
def test_too_few_gpus_are_refused_with_the_numbers(needed: Needs, counts: list[int], named: list[str]) -> None:
    message = needed.refusal("it has some", counts) or ""
    assert [word for word in named if word not in message] == []


@pytest.mark.parametrize(
    ("needed", "counts"),
    [
        (Needs(ranks=2, engines=2), [4]),
        (Needs(ranks=2, engines=1, each=2), [2, 2]),
        (Needs(ranks=4, engines=2, each=4), [6, 6]),
        (Needs(ranks=4, engines=4, shared=True, together=4), [2, 2]),
        (Needs(ranks=1, engines=1, shared=True), [1]),
        (Needs(ranks=0, engines=0), []),
    ],
)
def test_enough_gpus_are_not_refused(needed: Needs, counts: list[int]) -> None:
    assert needed.refusal("", counts) is None


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, Needs(ranks=1, engines=1)),
        ({"engine": {"rollout_num_gpus": 6, "rollout_num_gpus_per_engine": 2}}, Needs(ranks=1, engines=3, each=2)),
        (
            {"engine": {"colocate": True}, "trainer": {"actor_num_gpus_per_node": 4, "actor_num_nodes": 2}},
            Needs(ranks=8, engines=8, shared=True),
        ),
        (
            {"trainer": {"actor_num_gpus_per_node": 4, "tensor_model_parallel_size": 2}},
            Needs(ranks=4, engines=1, together=2),
        ),
        ({"debug": {"debug_train_only": True}}, Needs(ranks=1, engines=0)),
        ({"debug": {"debug_rollout_only": True}}, Needs(ranks=0, engines=1)),
    ],
)
def test_needs_are_slimes_flags(changes: dict[str, Any], needed: Needs) -> None:
    assert Needs.of(msgspec.convert(changes, TrainSettings)) == needed


@given(st.lists(machines, min_size=1, max_size=3), needs, st.sampled_from(["auto", "cuda"]))
def test_a_run_goes_to_gpus_that_suffice_or_is_refused_and_never_to_the_cpu_of_a_gpu_machine(
    here: list[Machine], needed: Needs, requested: Device
) -> None:
    able = [machine for machine in here if machine.has_gpus]
    try:
        device = device_for(requested, needed, here)
    except InvalidValue:
        enough = needed.refusal("", [len(machine.seen) for machine in able]) is None
        assert any(not machine.seen or machine.broken or machine.torch in (None, "2.13.0+cpu") for machine in able) or (
            not enough or not able
        )
        return
    if not able:
        assert (requested, device) == ("auto", "auto")
        return
    assert device == "cuda"
    assert sum(len(machine.seen) for machine in able) >= needed.total
    assert not any(machine.broken for machine in able)


@given(machines)
def test_whoever_asks_for_the_cpu_gets_it(machine: Machine) -> None:
    assert device_for("cpu", ONE_EACH, [machine]) == "cpu"


@given(needs, st.lists(st.integers(0, 6), max_size=4))
def test_what_is_not_refused_has_places(needed: Needs, counts: list[int]) -> None:
    placed = count_ranks(counts, needed.request) is not None
    assert (needed.refusal("", counts) is None) == (placed and needed.total <= sum(counts))


def nodes(*counts: tuple[int, int]) -> list[GpuNode]:
    """counts: free GPUs and all GPUs of each."""
    return [GpuNode(f"node{n}", f"10.0.0.{n}", count, free) for n, (free, count) in enumerate(counts)]


@pytest.mark.parametrize(("device", "counted"), [("cuda", 1), ("cuda", 0), ("auto", 1)])
def test_ray_counts_otherwise_than_torch(device: Device, counted: int) -> None:
    with pytest.raises(InvalidValue, match=f"Ray counts {counted} GPU"):
        check_count(device, ONE_EACH, nodes((counted, counted)))


@pytest.mark.parametrize(("device", "counted"), [("cuda", 2), ("auto", 0), ("cpu", 4)])
def test_ray_counts_as_torch_sees(device: Device, counted: int) -> None:
    check_count(device, ONE_EACH, nodes((counted, counted)))


def test_gpus_that_others_of_a_ray_use_are_not_counted() -> None:
    engine_of_four = Needs(ranks=2, engines=1, each=4)
    check_count("cuda", engine_of_four, nodes((2, 8), (4, 8)))
    with pytest.raises(InvalidValue) as caught:
        check_count("cuda", engine_of_four, nodes((3, 8), (3, 8)))
    message = str(caught.value)
    assert [word for word in ("3 of 8 GPUs on 10.0.0.1", "2 trainer ranks", "0 of 1") if word not in message] == []


def test_a_run_of_which_ray_counts_gpus_that_torch_does_not_see_ends_at_once_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with cheap_parts(Parts(gpus=(2,))), pytest.raises(InvalidValue, match="Ray counts 2 GPUs, and torch sees 0"):
        asyncio.run(run_with(tiny(tmp_path, "blind")))
    assert not (tmp_path / "runs" / "blind").exists()


def test_the_device_decides_what_was_not_given() -> None:
    plain = TrainSettings()
    cpu, cuda = on_device(plain, "auto"), on_device(plain, "cuda")
    assert (cpu.trainer.bf16, cpu.engine.chunk_tokens, cpu.engine.device) == (False, 64, "auto")
    assert (cuda.trainer.bf16, cuda.engine.chunk_tokens, cuda.engine.device) == (True, 512, "cuda")
    assert (cpu.trainer.log_probs_chunk_size, cpu.trainer.optimizer_digest) == (-1, "every")
    assert (cuda.trainer.log_probs_chunk_size, cuda.trainer.optimizer_digest) == (1024, "checkpoint")
    trainer_fields = {"log_probs_chunk_size": -1, "optimizer_digest": "every", "max_retrained_steps": -1}
    kept = on_device(msgspec.convert({"trainer": trainer_fields}, TrainSettings), "cuda").trainer
    assert {name: getattr(kept, name) for name in trainer_fields} == trainer_fields
    assert (cpu.trainer.max_retrained_steps, cuda.trainer.max_retrained_steps) == (-1, 8)
    own = msgspec.convert({"trainer": {"bf16": False}, "engine": {"chunk_tokens": 7}}, TrainSettings)
    assert (on_device(own, "cuda").trainer.bf16, on_device(own, "cuda").engine.chunk) == (False, 7)
    assert on_device(cuda, "cuda") == cuda


def test_on_gpus_checkpoints_are_saved_where_nothing_was_said_of_them() -> None:
    def saved(device: Device, debug: dict[str, Any] | None = None, **fields: Any) -> tuple[list[int], int]:
        settings = {"rollout": {"num_rollout": 50}, "trainer": fields, "debug": debug or {}}
        trainer = on_device(msgspec.convert(settings, TrainSettings), device).trainer
        return [version for version in range(51) if trainer.saves.due(version)], trainer.keep_checkpoints

    assert saved("cpu") == saved("auto") == ([], 0)
    assert saved("cuda") == ([20, 40, 50], 2)
    assert saved("cuda", keep_checkpoints=5, save_last=45) == ([20, 40, 45], 5)
    assert saved("cuda", save_interval=0) == ([], 0)
    assert saved("cuda", save_interval=25) == ([25, 50], 0)
    assert saved("cuda", {"debug_rollout_only": True}) == ([], 0)


def test_a_look_at_the_gpus_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: str) -> tuple[Machine, ...]:
        raise subprocess.CalledProcessError(1, "python", stderr=b"Traceback\nOSError: libcuda.so.1 is broken\n")

    monkeypatch.setattr(gpu_facts, "this_machine", lambda: GOOD)
    monkeypatch.setattr(gpu_facts, "_ask", failing)
    (machine,) = gpu_facts.machines(None)
    assert "torch sees 0: OSError: libcuda.so.1 is broken" in str(machine.problem())


def test_lines_of_ray_around_the_answer_are_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints some if one of its machines is lost, also while its driver ends."""
    program = (
        "from slime_events.app.launch import gpu_facts as facts; facts.look = lambda machine: machine; "
        "print('[early]'); facts.tell(); print('[late]')"
    )
    monkeypatch.setattr(gpu_facts, "_PROGRAM", program)
    assert gpu_facts._ask("here", msgspec.json.encode(GOOD).decode()) == (GOOD,)
