"""`device_for`: whether a run goes to GPUs, and why not where it could be expected to. Decided from facts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import InvalidValue
from slime_events.app.launch.placement import GpuNode, Wanted
from slime_events.core.config.derivations import on_device
from slime_events.core.config.engine import Device
from slime_events.core.config.settings import TrainSettings
from slime_events.core.gpus import ON_CPU, Machine, gpus


@dataclass(frozen=True, slots=True)
class Needs:
    """ranks: of the trainer, a GPU each; `together` of them hold the parts of one layer. engines: replicas, `each`
    GPUs each. shared: each GPU has a rank and an engine.
    """

    ranks: int
    engines: int
    each: int = 1
    shared: bool = False
    together: int = 1

    @classmethod
    def of(cls, settings: TrainSettings) -> Needs:
        """What a run with these settings takes on GPUs."""
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
        """GPUs."""
        return max(self.ranks, self.engines) if self.shared else self.ranks + self.engines * self.each

    @property
    def wanted(self) -> Wanted:
        """What has to find places."""
        return Wanted(self.ranks, self.together, 0 if self.shared else self.engines, self.each)

    def refusal(self, found: str, counts: Sequence[int]) -> str | None:
        """The sentence where there are too few. counts: GPUs of each machine. found: the same in words."""
        if self.shared and self.each > 1:
            return (
                f"--colocate: an engine of {gpus(self.each)} (--rollout-num-gpus-per-engine) cannot share them with "
                "trainer ranks: leave --colocate out, or take engines of one GPU"
            )
        if self.total > sum(counts):
            or_share = ", or let ranks and engines share with --colocate"
            return (
                f"{found}, and the run needs {self.total}: {self}. Lower --actor-num-gpus-per-node or "
                f"--rollout-num-gpus{'' if self.shared or self.each > 1 else or_share}"
            )
        # Where engines have their machines and the sum is enough, ranks fit into what is left.
        fitting = sum(count // self.each for count in counts)
        if self.engines > fitting and not self.shared:
            return (
                f"{found}, and the run needs {self}: an engine's {gpus(self.each)} (--rollout-num-gpus-per-engine) "
                f"have to be on one machine, and {fitting} of {self.engines} engines fit. Lower "
                "--rollout-num-gpus-per-engine or --rollout-num-gpus"
            )
        return None

    def __str__(self) -> str:
        ranks = f"{self.ranks} trainer rank{'' if self.ranks == 1 else 's'}"
        engines = f"{self.engines} engine{'' if self.engines == 1 else 's'} of {gpus(self.each)}"
        return f"{ranks} and {engines}, {'sharing GPUs' if self.shared else 'a GPU for each rank'}"


def check_listed(needs: Needs, here: Sequence[Machine]) -> None:
    """What can be told before torch is imported. InvalidValue where a machine with GPUs lacks what a run imports
    there, or where fewer are listed than needed; where a machine has no number, torch has to count.
    """
    for machine in here:
        _refuse(machine.problem())
    counts = [machine.listed for machine in here if machine.has_gpus]
    known = [count for count in counts if count is not None]
    if known and len(known) == len(counts):
        _refuse(needs.refusal(" and ".join(machine.evidence for machine in here if machine.has_gpus), known))


def device_for(asked: Device, needs: Needs, here: Sequence[Machine]) -> Device:
    """Where the run goes: `auto` stays auto where no machine has a GPU, which is the CPU.

    Raises InvalidValue where a machine has GPUs that cannot be used or are too few, or where there are none and
    cuda is asked for. Nothing goes to the CPU in silence.
    """
    able = [machine for machine in here if machine.has_gpus]
    if asked == "cpu" or (asked == "auto" and not able):
        return asked
    if not able:
        counted = any(machine.ray is not None for machine in here)
        said = "Ray counts 0 GPUs" if counted else "there is no NVIDIA device file in /dev"
        raise InvalidValue(f"--device cuda: {said}. {ON_CPU}")
    for machine in able:
        _refuse(machine.problem())
    found = " and ".join(f"torch sees {gpus(len(one.seen))} on {one.name or 'this machine'}" for one in able)
    _refuse(needs.refusal(found, [len(machine.seen) for machine in able]))
    return "cuda"


def check_count(device: Device, needs: Needs, nodes: Sequence[GpuNode]) -> None:
    """Once Ray is there: InvalidValue where it counts other GPUs than the run is to have, or others use them. nodes:
    of that Ray, those with GPUs.
    """
    counted, free = sum(node.count for node in nodes), [node.free for node in nodes]
    if device == "cuda" and needs.total > counted:
        raise InvalidValue(
            f"Ray counts {gpus(counted)}, torch sees more, and the run needs {needs.total}: {needs}. See what "
            "nvidia-smi says (Ray counts by NVML), or start Ray with --num-gpus and give its --ray-address"
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
