"""A machine with GPUs, faked: device files, a driver's version, and stand-ins for torch and the kernels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from slime_events.core.machine import gpus

KERNEL, OTHER_KERNEL = "fake_sgl_kernel", "fake_flashinfer"
"""Names that no machine has."""
TORCH = """
__version__ = {version!r}
class version:
    cuda = {cuda!r}
class cuda:
    device_count = staticmethod(lambda: {count})
    get_device_name = staticmethod(lambda index: "NVIDIA H100 80GB HBM3")
    class get_device_properties:
        total_memory = 85_520_809_984
        def __init__(self, index):
            pass
    @staticmethod
    def init():
        if not {count}:
            raise RuntimeError("no CUDA here")
"""


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """files: in /dev. torch: version, with the CUDA that it is built for. seen: GPUs that it sees. kernels: those that
    are installed. broken: those that cannot be imported all the same. driver: its version. visible:
    CUDA_VISIBLE_DEVICES.
    """

    files: tuple[str, ...] = ("nvidia0", "nvidia1", "nvidiactl")
    torch: str = "2.14.1"
    cuda: str | None = "13.0"
    seen: int = 2
    kernels: tuple[str, ...] = (KERNEL, OTHER_KERNEL)
    broken: tuple[str, ...] = ()
    driver: str = "580.65.06"
    visible: str | None = None

    def put(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        """Have this process, and each that it starts, find such a machine. folder: for the files.

        This process finds which packages are installed, and only those that it starts can import them.
        """
        devices, installed, importable = (folder / name for name in ("dev", "installed", "importable"))
        info = installed / f"torch-{self.torch}.dist-info"
        for path in (devices, info, importable):
            path.mkdir(parents=True)
        for name in self.files:
            (devices / name).touch()
        for name in self.kernels:
            (installed / f"{name}.py").touch()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {self.torch}\n")
        (importable / "torch.py").write_text(TORCH.format(version=self.torch, cuda=self.cuda, count=self.seen))
        for name in gpus.KERNELS:
            broken = 'raise ImportError("libcuda.so.1: no such file")' if name in self.broken else ""
            (importable / f"{name}.py").write_text(broken)
        driver = folder / "version"
        driver.write_text(f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {self.driver}  Release Build\n")
        patch.setattr(gpus, "DEVICES", devices)
        patch.setattr(gpus, "DRIVER", driver)
        patch.setattr(gpus, "KERNELS", (KERNEL, OTHER_KERNEL))
        patch.syspath_prepend(str(installed))
        patch.setenv("PYTHONPATH", str(importable), prepend=os.pathsep)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if self.visible is not None:
            patch.setenv("CUDA_VISIBLE_DEVICES", self.visible)
