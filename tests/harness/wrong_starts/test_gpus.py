"""`train` and `doctor` on machines with GPUs that a run cannot use: one sentence, and nothing on the CPU in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime_events.app.cli import checks
from slime_events.app.cli.checks import Outcome
from slime_events.app.cli.commands import doctor
from slime_events.app.cli.main import main
from slime_events.core.machine.gpus import KERNELS, this_machine
from tests.cli.invoke import arguments
from tests.harness.wrong_starts.cases import TRAIN, Case, prepare
from tests.harness.wrong_starts.gpu_machine import KERNEL, OTHER_KERNEL, GpuMachine
from tests.harness.wrong_starts.judge import complaints, listing

ROOT = Path(__file__).parents[3]
NO_KERNELS = GpuMachine(kernels=())
BLIND = GpuMachine(torch="2.13.0+cpu", cuda=None, seen=0)
OLD_DRIVER = GpuMachine(seen=0, driver="535.104.05")
PROBLEMS = [
    (NO_KERNELS, f"{KERNEL}, {OTHER_KERNEL} (not installed)"),
    (BLIND, "2 GPUs"),
    (BLIND, "torch 2.13.0+cpu sees 0"),
    (GpuMachine(torch="2.13.0", cuda=None, seen=0), "torch 2.13.0 sees 0"),
    (OLD_DRIVER, "needs NVIDIA driver 580 or newer, and 535.104.05 is installed"),
    (GpuMachine(seen=0, visible=""), "CUDA_VISIBLE_DEVICES"),
    (GpuMachine(seen=0), "RuntimeError: no CUDA here"),
    (GpuMachine(broken=(KERNELS[0],)), f"{KERNELS[0]} (ImportError: libcuda.so.1: no such file)"),
    (GpuMachine(files=("nvidiactl",), seen=0), "NVIDIA driver"),
]
FEWER = [
    (GpuMachine(), ("--actor-num-gpus-per-node", "4", "--rollout-num-gpus", "2"), "needs 4: 4 trainer ranks"),
    (GpuMachine(), ("--no-colocate", "--rollout-num-gpus", "2"), "needs 3: 1 trainer rank and 2 engines of 1 GPU"),
    (GpuMachine(), ("--tree-packing",), "tree_packing is for trainer ranks on the CPU"),
    (GpuMachine(files=("nvidiactl",), seen=1), ("--rollout-num-gpus", "2"), "sees 1 GPU"),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with the good settings in `good.toml`."""
    folder = tmp_path / "place"
    folder.mkdir()
    prepare(folder)
    return folder


@pytest.mark.parametrize(
    ("machine", "flags", "names"), [*((machine, (), names) for machine, names in PROBLEMS), *FEWER]
)
def test_train_is_refused_before_anything_is_there(
    machine: GpuMachine,
    flags: tuple[str, ...],
    names: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine.put(tmp_path, monkeypatch)
    monkeypatch.chdir(place)
    before = listing(place)
    code = main([*TRAIN, *flags])
    assert complaints(Case("gpus", (), names), code, capsys.readouterr().err) == []
    assert listing(place) == before


@pytest.mark.parametrize(("machine", "names"), PROBLEMS)
def test_doctor_says_the_same(machine: GpuMachine, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.put(tmp_path, monkeypatch)
    check = checks.check_gpus(this_machine())
    assert check.outcome is Outcome.FAIL
    assert check.mend
    assert names in f"{check.detail} {check.mend}"


def test_doctor_is_content_with_gpus_that_a_run_can_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GpuMachine().put(tmp_path, monkeypatch)
    check = checks.check_gpus(this_machine())
    assert (check.outcome, check.mend) == (Outcome.OK, "")
    assert [word for word in ("H100", "580.65.06", "13.0") if word not in check.detail] == []


def test_doctor_puts_no_placeholders_in_the_place_of_kernels_on_a_machine_with_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows() -> dict[str, Outcome]:
        checks = doctor.diagnose(arguments("doctor", "--quick", "--runs-dir", str(tmp_path)))
        return {check.name: check.outcome for check in checks}

    assert {"sglang on CPU", "sglang on GPU"} & rows().keys() == {"sglang on CPU"}
    NO_KERNELS.put(tmp_path, monkeypatch)
    assert {"sglang on CPU", "sglang on GPU"} & rows().keys() == {"sglang on GPU"}


def test_doctor_compares_what_is_installed_with_what_sglang_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GpuMachine(torch="2.11.7").put(tmp_path, monkeypatch)
    check = checks.check_kernels()
    assert check.outcome is Outcome.FAIL
    assert "torch is 2.11.7, not ==" in check.detail


def test_too_few_gpus_are_refused_without_importing_torch(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    GpuMachine().put(tmp_path, monkeypatch)
    monkeypatch.setattr("slime_events.app.launch.preflight.machines", lambda _: pytest.fail("torch is asked"))
    monkeypatch.chdir(place)
    assert main([*TRAIN, "--actor-num-gpus-per-node", "4"]) == 2
    assert "2 GPUs" in capsys.readouterr().err


STARTED = """
import sys
from pathlib import Path
from slime_events.core.machine import gpus
gpus.DEVICES = Path({devices!r})
from slime_events.app.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_command_itself_on_a_machine_with_device_files_and_a_blind_torch(place: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        BLIND.put(tmp_path, patch)
        path = os.pathsep.join([str(tmp_path / "installed"), str(ROOT), os.environ["PYTHONPATH"]])
    before = listing(place)
    program = STARTED.format(devices=str(tmp_path / "dev"))
    done = subprocess.run(
        [sys.executable, "-c", program, *TRAIN], cwd=place, env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert complaints(Case("gpus", (), "torch 2.13.0+cpu sees 0"), done.returncode, done.stderr) == []
    assert listing(place) == before
