"""`NodeFacts`: what a machine of a cluster has, to compare with the others. Imports neither torch nor CUDA."""

import platform
import subprocess
from importlib import metadata
from typing import Annotated

import msgspec

from schemas.doc import doc

COMPARED = ("slime-events", "torch", "sglang", "megatron-core", "ray", "transformers", "nats-py")
"""Distributions whose versions must be the same on all machines, besides NCCL's."""
NCCL = "nvidia-nccl-cu"
SMI = ("nvidia-smi", "--query-gpu=name,memory.free,memory.total", "--format=csv,noheader,nounits")
SMI_S = 20.0
MIB = 2**20


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one GPU by NVIDIA's driver."""

    name: str
    free: Annotated[int, doc("bytes that no process has taken")]
    total: Annotated[int, doc("bytes of the GPU")]


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A machine."""

    versions: Annotated[dict[str, str], doc("version of Python and of each installed distribution that must be equal")]
    gpus: Annotated[tuple[GpuMemory, ...], doc("its GPUs; empty if it has none")] = ()
    gpu_error: Annotated[str, doc("why the GPUs could not be asked; empty if they could")] = ""


def read_facts(*, has_gpus: bool) -> NodeFacts:
    """Return the facts of this machine. has_gpus: ask NVIDIA's driver for its GPUs."""
    gpus, error = _gpus() if has_gpus else ((), "")
    return NodeFacts(versions=_versions(), gpus=gpus, gpu_error=error)


def _versions() -> dict[str, str]:
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    names = {dist.name for dist in metadata.distributions() if dist.name and dist.name.startswith(NCCL)}
    for name in (*COMPARED, *sorted(names)):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _gpus() -> tuple[tuple[GpuMemory, ...], str]:
    """Return the GPUs, and why they could not be asked."""
    try:
        done = subprocess.run(SMI, capture_output=True, text=True, timeout=SMI_S, check=True)
        return tuple(_gpu(line) for line in done.stdout.splitlines() if line.strip()), ""
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return (), f"nvidia-smi gives no memory: {type(error).__name__}: {error}"


def _gpu(line: str) -> GpuMemory:
    name, free, total = (part.strip() for part in line.rsplit(",", 2))
    return GpuMemory(name=name, free=int(free) * MIB, total=int(total) * MIB)
