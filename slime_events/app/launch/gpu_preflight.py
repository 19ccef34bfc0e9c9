"""`device_for`: decide whether a run uses GPUs, from facts about the machines."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import InvalidValue
from slime_events.core.config.engine import Device
from slime_events.core.machine.gpus import ON_CPU, Machine, gpus
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.placement import GpuNode


def check_listed(needs: Needs, here: Sequence[Machine]) -> None:
    """Check the GPUs that machines list, before torch is imported.

    Raises InvalidValue if a machine with GPUs lacks a package, or if fewer GPUs are listed than needed. If a machine
    lists no number, torch counts later.
    """
    for machine in here:
        _refuse(machine.problem())
    counts = [machine.listed for machine in here if machine.has_gpus]
    numbers = [count for count in counts if count is not None]
    if numbers and len(numbers) == len(counts):
        _refuse(needs.refusal(" and ".join(machine.evidence for machine in here if machine.has_gpus), numbers))


def device_for(device: Device, needs: Needs, here: Sequence[Machine]) -> Device:
    """Return the device of a run: `auto` stays `auto`, which means the CPU, if no machine has a GPU.

    Raises InvalidValue if a machine has GPUs that cannot be used or are too few, or if the device is cuda and there are
    none. A run never falls back to the CPU silently.
    """
    able = [machine for machine in here if machine.has_gpus]
    if device == "cpu" or (device == "auto" and not able):
        return device
    if not able:
        counted = any(machine.ray is not None for machine in here)
        reason = "Ray counts 0 GPUs" if counted else "there is no NVIDIA device file in /dev"
        raise InvalidValue(f"--device cuda: {reason}. {ON_CPU}")
    for machine in able:
        _refuse(machine.problem())
    seen = [f"torch sees {gpus(len(machine.seen))} on {machine.name or 'this machine'}" for machine in able]
    _refuse(needs.refusal(" and ".join(seen), [len(machine.seen) for machine in able]))
    return "cuda"


def check_count(device: Device, needs: Needs, nodes: Sequence[GpuNode]) -> None:
    """Raise InvalidValue if Ray counts too few GPUs for the run, or if other jobs use them. nodes: those with GPUs."""
    counted, free = sum(node.count for node in nodes), [node.free for node in nodes]
    if device == "cuda" and needs.total > counted:
        raise InvalidValue(
            f"Ray counts {gpus(counted)}, torch sees more, and the run needs {needs.total}: {needs}. Check the output "
            "of nvidia-smi (Ray counts with NVML), or start Ray with --num-gpus and give its --ray-address"
        )
    if device == "cuda":
        parts = [f"{node.free} of {gpus(node.count)} on {node.address}" for node in nodes]
        _refuse(needs.refusal(f"Ray has free: {', '.join(parts)}", free))
    if device == "auto" and counted:
        raise InvalidValue(
            f"Ray counts {gpus(counted)}, and torch sees 0 here: there is no NVIDIA device file in /dev. {ON_CPU}"
        )


def _refuse(reason: str | None) -> None:
    if reason:
        raise InvalidValue(reason)
