"""`Needs`: the ranks and engines of a run, and their GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from slime_events.core.config.derivations import on_device
from slime_events.core.config.engine_groups import EngineGroup
from slime_events.core.config.settings import TrainSettings
from slime_events.core.machine.gpus import gpus
from slime_events.core.planning.group_places import place_groups
from slime_events.core.planning.placement import NodeShare, PlaceRequest, place_all

RANK_SHARE, ENGINE_SHARE = 0.6, 0.4
"""Parts of a shared GPU, by which Ray places processes. Two ranks never fit on one GPU, because NCCL refuses that."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Ranks and engines of a run, and their GPUs."""

    ranks: Annotated[int, doc("Ranks of the trainer, which take a GPU each")]
    engines: Annotated[int, doc("Engines that make rollouts")]
    each: Annotated[int, doc("GPUs of an engine; with groups: of the largest")] = 1
    shared: Annotated[bool, doc("Each GPU has a rank and an engine")] = False
    turns: Annotated[bool, doc("Ranks and engines of a GPU release it to each other in turns")] = False
    external: Annotated[int, doc("Engines that run already, on GPUs that are not of this run")] = 0
    together: Annotated[int, doc("Ranks that hold the parts of one layer: the tensor parallel size")] = 1
    groups: Annotated[
        tuple[EngineGroup, ...], doc("Groups of all engines, those of other models too; empty if all are equal")
    ] = ()

    @classmethod
    def of(cls, settings: TrainSettings) -> Needs:
        """Return the needs of a run with these settings on GPUs."""
        engine, debug = on_device(settings, "cuda").engine, settings.debug
        engines = 0 if debug.debug_train_only else engine.replicas
        groups = () if debug.debug_train_only else engine.groups
        runs_already = bool(engine.rollout_external_engine_addrs)
        return cls(
            ranks=0 if debug.debug_rollout_only else settings.trainer.world_size,
            engines=0 if runs_already else engines,
            external=engines if runs_already else 0,
            each=max((group.each for group in groups if group.engines), default=engine.rollout_num_gpus_per_engine),
            shared=engine.colocate,
            turns=engine.takes_turns,
            together=settings.trainer.tensor_model_parallel_size,
            groups=groups,
        )

    @property
    def total(self) -> int:
        """Number of GPUs."""
        if self.groups:
            return self.ranks + sum(group.gpus for group in self.groups)
        return max(self.ranks, self.engines * self.each) if self.shared else self.ranks + self.engines * self.each

    @property
    def rank_gpus(self) -> float:
        """GPUs of a rank, as Ray counts them."""
        return RANK_SHARE if self.shared else 1.0

    @property
    def engine_gpus(self) -> float:
        """GPUs of an engine, as Ray counts them."""
        return ENGINE_SHARE if self.shared else float(self.each)

    @property
    def request(self) -> PlaceRequest:
        """Ranks and engines that need their own GPUs."""
        return PlaceRequest(self.ranks, self.together, 0 if self.shared else self.engines, self.each)

    def places(self, free: Sequence[int]) -> tuple[NodeShare, ...] | None:
        """Return the part of each machine, or None if ranks and engines do not all fit. free: GPUs by machine."""
        if self.groups:
            places = place_groups(free, self.groups, self.ranks, self.together)
            return None if places is None else places.shares(free)
        return place_all(free, self.request, self.engines if self.shared else 0)

    def refusal(self, available: str, counts: Sequence[int]) -> str | None:
        """Return a message if there are too few GPUs. counts: GPUs by machine. available: the same as text."""
        if self.shared and self.each > 1:
            return (
                f"--colocate needs engines of one GPU: an engine of {gpus(self.each)} (--rollout-num-gpus-per-engine) "
                "cannot share them with trainer ranks. Leave --colocate out, or use engines of one GPU"
            )
        if self.total > sum(counts):
            or_share = ", or let ranks and engines share with --colocate"
            fewer = "--rollout-num-gpus" + ("" if self.shared or self.each > 1 else or_share)
            return (
                f"{available}, and the run needs {self.total}: {self}. Lower --actor-num-gpus-per-node or "
                f"{'num_gpus in --sglang-config' if self.groups else fewer}"
            )
        if self.groups:
            if self.places(counts) is not None:
                return None
            return (
                f"{available}, and the run needs {self}: they do not all fit, as an engine's GPUs must be on one "
                "machine. Lower num_gpus or num_gpus_per_engine in --sglang-config"
            )
        # If the sum is enough and all engines fit, the ranks fit into the GPUs left.
        fitting = sum(count // self.each for count in counts)
        if self.engines > fitting and not self.shared:
            return (
                f"{available}, and the run needs {self}: an engine's {gpus(self.each)} (--rollout-num-gpus-per-engine) "
                f"must be on one machine, and {fitting} of {self.engines} engines fit. Lower "
                "--rollout-num-gpus-per-engine or --rollout-num-gpus, or start engines of several machines as servers "
                "(docs/external-engines.md)"
            )
        return None

    def __str__(self) -> str:
        ranks = f"{self.ranks} trainer rank{'' if self.ranks == 1 else 's'}"
        if self.external:
            return f"{ranks}, beside {self.external} engine{'' if self.external == 1 else 's'} that run already"
        if self.groups:
            parts = [_group_text(group) for group in self.groups]
            return f"{ranks}, {', '.join(parts)}, {self._sharing}"
        engines = f"{self.engines} engine{'' if self.engines == 1 else 's'} of {gpus(self.each)}"
        return f"{ranks} and {engines}, {self._sharing}"

    @property
    def _sharing(self) -> str:
        if not self.shared:
            return "a GPU for each rank"
        return "sharing GPUs in turns" if self.turns else "sharing GPUs"


def _group_text(group: EngineGroup) -> str:
    """Return `2 engines of 4 GPUs (actor-0)`."""
    if group.reserved:
        return f"{gpus(group.gpus)} kept free ({group.name})"
    return f"{group.engines} engine{'' if group.engines == 1 else 's'} of {gpus(group.each)} ({group.name})"
