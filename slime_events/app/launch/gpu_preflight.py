"""`device_for`: decide whether a run uses GPUs, from facts about the machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from schemas.errors import InvalidValue
from slime_events.app.launch.placement import GpuNode, PlaceRequest
from slime_events.core.config.derivations import on_device
from slime_events.core.config.engine import Device
from slime_events.core.config.settings import TrainSettings
from slime_events.core.machine.gpus import ON_CPU, Machine, gpus


@dataclass(frozen=True, slots=True)
class Needs:
    """Ranks and engines of a run, and their GPUs."""

    ranks: Annotated[int, doc("Ranks of the trainer, which take a GPU each")]
    engines: Annotated[int, doc("Replicas of the engine")]
    each: Annotated[int, doc("GPUs of an engine")] = 1
    shared: Annotated[bool, doc("Each GPU has a rank and an engine")] = False
    together: Annotated[int, doc("Ranks that hold the parts of one layer: the tensor parallel size")] = 1

    @classmethod
    def of(cls, settings: TrainSettings) -> Needs:
        """Return the needs of a run with these settings on GPUs."""
        engine, debug = on_device(settings, "cuda").engine, settings.debug
        return cls(
            ranks=0 if debug.debug_rollout_only else settings.trainer.world_size,
            engines=0 if debug.debug_train_only else engine.replicas,
            each=engine.rollout_num_gpus_per_engine,
            shared=engine.colocate,
            together=settings.trainer.tensor_model_parallel_size,
        )

    @property
    def total(self) -> int:
        """Number of GPUs."""
        return max(self.ranks, self.engines) if self.shared else self.ranks + self.engines * self.each

    @property
    def request(self) -> PlaceRequest:
        """Ranks and engines that need their own GPUs."""
        return PlaceRequest(self.ranks, self.together, 0 if self.shared else self.engines, self.each)

    def refusal(self, available: str, counts: Sequence[int]) -> str | None:
        """Return a message if there are too few GPUs. counts: GPUs by machine. available: the same as text."""
        if self.shared and self.each > 1:
            return (
                f"--colocate needs engines of one GPU: an engine of {gpus(self.each)} (--rollout-num-gpus-per-engine) "
                "cannot share them with trainer ranks. Leave --colocate out, or use engines of one GPU"
            )
        if self.total > sum(counts):
            or_share = ", or let ranks and engines share with --colocate"
            return (
                f"{available}, and the run needs {self.total}: {self}. Lower --actor-num-gpus-per-node or "
                f"--rollout-num-gpus{'' if self.shared or self.each > 1 else or_share}"
            )
        # If the sum is enough and all engines fit, the ranks fit into the GPUs left.
        fitting = sum(count // self.each for count in counts)
        if self.engines > fitting and not self.shared:
            return (
                f"{available}, and the run needs {self}: an engine's {gpus(self.each)} (--rollout-num-gpus-per-engine) "
                f"must be on one machine, and {fitting} of {self.engines} engines fit. Lower "
                "--rollout-num-gpus-per-engine or --rollout-num-gpus"
            )
        return None

    def __str__(self) -> str:
        ranks = f"{self.ranks} trainer rank{'' if self.ranks == 1 else 's'}"
        engines = f"{self.engines} engine{'' if self.engines == 1 else 's'} of {gpus(self.each)}"
        return f"{ranks} and {engines}, {'sharing GPUs' if self.shared else 'a GPU for each rank'}"


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
