"""`Machine`: the GPUs of a machine, what torch sees of them, and what is in the way of a run on them."""

import contextlib
import importlib
import os
import re
from importlib import metadata, util
from pathlib import Path

import msgspec
from msgspec.structs import replace

DEVICES = Path("/dev")
DRIVER = Path("/proc/driver/nvidia/version")
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA's major version to the driver that it needs, with any minor version (NVIDIA, CUDA compatibility)."""
KERNELS = ("sgl_kernel", "flashinfer", "torchvision", "triton")
"""What SGLang imports on a GPU for a text model; on the CPU placeholders stand in for some."""
OPTIONAL_KERNELS = ("transformer_engine.pytorch",)
"""What the trainer takes where it is installed."""
INSTALL = "Install the GPU set: `make SET=gpu install` (docs/gpu.md)"
ON_CPU = "Or run on the CPU with --device cpu"
NOT_INSTALLED = "not installed"
_HIDDEN = ("", "-1", "NoDevFiles")


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """name: of a node of a Ray cluster; empty for this machine. files: NVIDIA's device files. driver: its version.
    ray: GPUs that Ray counts; None where it was not asked. visible: CUDA_VISIBLE_DEVICES.

    asked: whether torch was imported; what follows `broken` is known only then. torch: its version; None where it is
    not installed. broken: packages that a run imports on a GPU and cannot, with the reasons. cuda: the version that
    torch is built for. seen: names of the GPUs that torch can use. said: by torch, where it sees none.
    """

    name: str = ""
    files: tuple[str, ...] = ()
    driver: str | None = None
    ray: int | None = None
    visible: str | None = None
    asked: bool = False
    torch: str | None = None
    broken: dict[str, str] = {}
    cuda: str | None = None
    seen: tuple[str, ...] = ()
    said: str = ""

    @property
    def has_gpus(self) -> bool:
        """Whether anything says that there are GPUs. Where nothing does, torch is not asked."""
        return bool(self.files) or bool(self.ray)

    @property
    def listed(self) -> int | None:
        """GPUs by Ray's count, else by device files; None where those have no numbers (a driver alone, or WSL)."""
        numbered = sum(bool(re.fullmatch(r"nvidia\d+", Path(file).name)) for file in self.files)
        return self.ray if self.ray is not None else numbered or None

    @property
    def found(self) -> str:
        """What says that there are GPUs, with its number."""
        where, files = self.name or "this machine", ", ".join(self.files)
        if self.ray is not None:
            return f"Ray counts {gpus(self.ray)} on {where}"
        return (
            f"{where} has {gpus(self.listed)} ({files})" if self.listed else f"{where} has an NVIDIA driver ({files})"
        )

    def problem(self) -> str | None:
        """Why GPUs that are here cannot be used, and what to do; None where they can, or where there are none."""
        return ". ".join(said) if any(said := self.trouble()) else None

    def trouble(self) -> tuple[str, str]:
        """`problem` in two: why, and what to do. Both empty where there is none."""
        if not self.has_gpus:
            return "", ""
        reasons, mend = [], INSTALL if self.broken else ""
        if self.torch is None or self._is_cpu_build or (self.asked and not self.seen):
            reason, mend = self._blindness()
            reasons.append(f"torch{f' {self.torch}' * bool(self.torch)} sees 0: {reason}")
        if self.broken:
            absent = [name for name, why in self.broken.items() if why == NOT_INSTALLED]
            parts = [f"{', '.join(absent)} ({NOT_INSTALLED})"] if absent else []
            parts += [f"{name} ({why})" for name, why in self.broken.items() if why != NOT_INSTALLED]
            reasons.append(f"a run on a GPU cannot import {'; '.join(parts)}")
        return (f"{self.found}, and {', and '.join(reasons)}", f"{mend}. {ON_CPU}") if reasons else ("", "")

    @property
    def _is_cpu_build(self) -> bool:
        return "+cpu" in (self.torch or "")

    def _blindness(self) -> tuple[str, str]:
        """Why torch sees no GPU, and what to do."""
        if self.torch is None:
            return self.said or f"it is {NOT_INSTALLED}", INSTALL
        if self._is_cpu_build or self.cuda is None:
            return "it is built without CUDA", INSTALL
        if self.visible is not None and self.visible.strip() in _HIDDEN:
            return f"CUDA_VISIBLE_DEVICES is {self.visible!r}, which hides them", "Unset it"
        needed = OLDEST_DRIVER.get(int(self.cuda.partition(".")[0]))
        if needed and self.driver and int(self.driver.partition(".")[0]) < needed:
            reason = f"its CUDA {self.cuda} needs NVIDIA driver {needed} or newer, and {self.driver} is installed"
            return reason, "Update the driver"
        said = self.said or "torch does not say why"
        return f"CUDA {self.cuda} does not start ({said})", "See what nvidia-smi says"


def gpus(count: int | None) -> str:
    """'1 GPU', '2 GPUs'."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def this_machine(name: str = "", ray: int | None = None) -> Machine:
    """What lies in files and the environment, in a few milliseconds: torch and the kernels are not imported.

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
    """The machine with what torch and the kernels tell in this process. It imports them all, which takes seconds."""
    machine = replace(machine, asked=True)
    try:
        import torch
    except Exception as error:  # a library that does not load has its own class
        return replace(machine, torch=None, said=f"it cannot be imported ({_first_sentence(error)})")
    seen, said = [], ""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        seen = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    except Exception as error:
        said = _first_sentence(error)
    broken = {**machine.broken, **(_broken_kernels() if seen else {})}
    return replace(
        machine, torch=str(torch.__version__), broken=broken, cuda=torch.version.cuda, seen=tuple(seen), said=said
    )


def _broken_kernels() -> dict[str, str]:
    broken = {}
    for name in (*KERNELS, *OPTIONAL_KERNELS):
        if util.find_spec(name.partition(".")[0]) is not None:
            try:
                importlib.import_module(name)
            except Exception as error:
                broken[name] = _first_sentence(error)
    return broken


def _first_sentence(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
