"""`Machine`: the GPUs of a machine, what torch can use of them, and why a run may not be able to use them."""

import contextlib
import importlib
import os
import re
from importlib import metadata, util
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from schemas.doc import doc

DEVICES = Path("/dev")
DRIVER = Path("/proc/driver/nvidia/version")
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA's major version to the oldest driver for any of its minor versions (NVIDIA, CUDA compatibility)."""
KERNELS = ("sgl_kernel", "flashinfer", "torchvision", "triton")
"""Packages that SGLang imports on a GPU for a text model; on the CPU, placeholders replace some."""
OPTIONAL_KERNELS = ("transformer_engine.pytorch",)
"""Packages that the trainer uses if they are installed."""
INSTALL = "Install the GPU set: `make SET=gpu install` (docs/gpu.md)"
ON_CPU = "Or run on the CPU with --device cpu"
NOT_INSTALLED = "not installed"
_HIDDEN = ("", "-1", "NoDevFiles")


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The GPUs of a machine. `cuda`, `seen` and `torch_error` are known only if `probed`."""

    name: Annotated[str, doc("name of a node of a Ray cluster; empty: this machine")] = ""
    files: Annotated[tuple[str, ...], doc("NVIDIA's device files")] = ()
    driver: Annotated[str | None, doc("version of NVIDIA's driver; None: there is none")] = None
    ray: Annotated[int | None, doc("GPUs that Ray counts; None: Ray was not queried")] = None
    visible: Annotated[str | None, doc("CUDA_VISIBLE_DEVICES; None: not set")] = None
    probed: Annotated[bool, doc("torch and the kernels were imported to look at the GPUs")] = False
    torch: Annotated[str | None, doc("version of torch; None: not installed")] = None
    broken: Annotated[dict[str, str], doc("packages that a run on a GPU cannot import, with the reasons")] = {}
    cuda: Annotated[str | None, doc("CUDA version that torch is built for; None: built without CUDA")] = None
    seen: Annotated[tuple[str, ...], doc("names of the GPUs that torch can use")] = ()
    gpu_bytes: Annotated[int | None, doc("memory of the smallest of these GPUs, in bytes; None: unknown")] = None
    torch_error: Annotated[str, doc("torch's error, if it can use no GPU")] = ""

    @property
    def has_gpus(self) -> bool:
        """Whether there are signs of GPUs. If there are none, torch is not imported."""
        return bool(self.files) or bool(self.ray)

    @property
    def listed(self) -> int | None:
        """The number of GPUs by Ray, or by device files; None if the files have no numbers (only a driver, or WSL)."""
        numbered = sum(bool(re.fullmatch(r"nvidia\d+", Path(file).name)) for file in self.files)
        return self.ray if self.ray is not None else numbered or None

    @property
    def evidence(self) -> str:
        """A sentence about the signs of GPUs, with their number."""
        where, files = self.name or "this machine", ", ".join(self.files)
        if self.ray is not None:
            return f"Ray counts {gpus(self.ray)} on {where}"
        return (
            f"{where} has {gpus(self.listed)} ({files})" if self.listed else f"{where} has an NVIDIA driver ({files})"
        )

    def problem(self) -> str | None:
        """Return why GPUs of this machine cannot be used, and what to do; None if they can, or there are none."""
        return ". ".join(parts) if any(parts := self.trouble()) else None

    def trouble(self) -> tuple[str, str]:
        """Return `problem` in two parts, the reason and what to do; both empty if there is no problem."""
        if not self.has_gpus:
            return "", ""
        reasons, mend = [], INSTALL if self.broken else ""
        if self.torch is None or self._is_cpu_build or (self.probed and not self.seen):
            reason, mend = self._blindness()
            reasons.append(f"torch{f' {self.torch}' * bool(self.torch)} sees 0: {reason}")
        if self.broken:
            absent = [name for name, why in self.broken.items() if why == NOT_INSTALLED]
            parts = [f"{', '.join(absent)} ({NOT_INSTALLED})"] if absent else []
            parts += [f"{name} ({why})" for name, why in self.broken.items() if why != NOT_INSTALLED]
            reasons.append(f"a run on a GPU cannot import {'; '.join(parts)}")
        return (f"{self.evidence}, but {', and '.join(reasons)}", f"{mend}. {ON_CPU}") if reasons else ("", "")

    @property
    def _is_cpu_build(self) -> bool:
        return "+cpu" in (self.torch or "")

    def _blindness(self) -> tuple[str, str]:
        """Return why torch sees no GPU, and what to do."""
        if self.torch is None:
            return self.torch_error or f"it is {NOT_INSTALLED}", INSTALL
        if self._is_cpu_build or self.cuda is None:
            return "it is built without CUDA", INSTALL
        if self.visible is not None and self.visible.strip() in _HIDDEN:
            return f"CUDA_VISIBLE_DEVICES is {self.visible!r}, which hides them", "Unset it"
        needed = OLDEST_DRIVER.get(int(self.cuda.partition(".")[0]))
        if needed and self.driver and int(self.driver.partition(".")[0]) < needed:
            reason = f"its CUDA {self.cuda} needs NVIDIA driver {needed} or newer, and {self.driver} is installed"
            return reason, "Update the driver"
        error = self.torch_error or "torch gives no reason"
        return f"CUDA {self.cuda} does not start ({error})", "See the output of nvidia-smi"


def gpus(count: int | None) -> str:
    """Return '1 GPU' or '2 GPUs'."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def this_machine(name: str = "", ray: int | None = None) -> Machine:
    """Return the machine as files and the environment describe it, in a few ms: torch and kernels are not imported.

    name, ray: of a node of a Ray cluster.
    """
    folder = sorted(DEVICES.glob("nvidia*"), key=lambda path: (len(path.name), path.name))
    files = [path for path in folder if re.fullmatch(r"nvidia(\d+|ctl)", path.name)]
    files += [path for path in (DEVICES / "dxg",) if path.exists()]  # WSL
    version = None
    with contextlib.suppress(OSError):
        match = re.search(r"\b(\d{3,}\.\d[\d.]*)", DRIVER.read_text())
        version = match[1] if match else None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    machine = Machine(name=name, files=tuple(map(str, files)), driver=version, ray=ray, visible=visible)
    if not machine.has_gpus:
        return machine
    with contextlib.suppress(metadata.PackageNotFoundError):
        machine = replace(machine, torch=metadata.version("torch"))
    return replace(machine, broken={name: NOT_INSTALLED for name in KERNELS if util.find_spec(name) is None})


def look(machine: Machine) -> Machine:
    """Return the machine with the GPUs that torch can use. Imports torch and the kernels, which takes seconds."""
    machine = replace(machine, probed=True)
    try:
        import torch
    except Exception as error:  # a library that does not load may raise any class
        return replace(machine, torch=None, torch_error=f"it cannot be imported ({_first_sentence(error)})")
    seen, torch_error, size = [], "", None
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        seen = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        size = min((torch.cuda.get_device_properties(index).total_memory for index in range(len(seen))), default=None)
    except Exception as error:  # torch raises several classes, and any of them is the answer here
        torch_error = _first_sentence(error)
    broken = {**machine.broken, **(_broken_kernels() if seen else {})}
    return replace(
        machine,
        torch=str(torch.__version__),
        broken=broken,
        cuda=torch.version.cuda,
        seen=tuple(seen),
        gpu_bytes=size,
        torch_error=torch_error,
    )


def _broken_kernels() -> dict[str, str]:
    broken = {}
    for name in (*KERNELS, *OPTIONAL_KERNELS):
        if util.find_spec(name.partition(".")[0]) is not None:
            try:
                importlib.import_module(name)
            except Exception as error:  # a kernel that does not load may raise any class
                broken[name] = _first_sentence(error)
    return broken


def _first_sentence(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
