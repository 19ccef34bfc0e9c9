"""A placement: machines of a run, and the GPUs that are reserved on them for each process."""

import enum
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.event import Event


class PlacedRole(enum.StrEnum):
    """Process that a bundle is for."""

    RANK = "rank"
    ENGINE = "engine"


class PackStrategy(enum.StrEnum):
    """Strategy of a Ray placement group."""

    PACK = "PACK"
    STRICT_PACK = "STRICT_PACK"


class PlannedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, with its GPUs as Ray counted them before anything was placed."""

    node: Annotated[str, doc("Ray's node id.")]
    address: Annotated[str, doc("Address of the machine.")]
    gpus: Annotated[int, doc("GPUs of the machine; 0 in a run on CPUs.")]
    free: Annotated[int, doc("GPUs that no process had.")]


class PlannedBundles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bundles of equal size, one for each process of `members`."""

    role: Annotated[PlacedRole, doc("Processes that the bundles are for.")]
    members: Annotated[tuple[int, ...], doc("Ranks, or numbers of engines, in ascending order.")]
    gpus: Annotated[float, doc("GPUs of a bundle: below 1 if ranks and engines share GPUs, 0 on CPUs.")]
    cpus: Annotated[float, doc("CPUs of a bundle. Ray counts none for the processes of a run.")] = 0.0
    strategy: Annotated[
        PackStrategy, doc("Strategy of the placement group: of all ranks together, or of each engine.")
    ] = PackStrategy.STRICT_PACK
    nodes: Annotated[tuple[str, ...], doc("Node ids, one of which a bundle must be on. Empty: any machine.")] = ()
    group: Annotated[str, doc("Group of the engines, as `<model>-<number>`. Empty if all engines are equal.")] = ""


class PlannedRank(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the fullest rank on its GPU."""

    bytes: Annotated[int, doc("All bytes that it needs.")]
    state_bytes: Annotated[int, doc("Bytes of weights, gradients and optimizer.")]


class PlannedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of an engine on each of its GPUs."""

    bytes: Annotated[int, doc("All bytes that it needs.")]
    cached_tokens: Annotated[int, doc("Tokens that the cache of the whole engine holds.")]


class PlannedFlow(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates of a step and of what is written."""

    generate_s: Annotated[float, doc("Seconds to generate the samples of a step.")]
    train_s: Annotated[float, doc("Seconds to train on them.")]
    step_s: Annotated[float, doc("Seconds of a step: both, or the longer one if they overlap.")]
    version_bytes: Annotated[int, doc("Bytes of a weight version.")]
    version_s: Annotated[float, doc("Seconds from trained weights until an engine has them.")]
    log_bytes_s: Annotated[float, doc("Bytes of events per second.")]
    archive_bytes_s: Annotated[float, doc("Bytes of the archive per second.")]
    disk_a_day: Annotated[float, doc("Bytes on disk after a day.")]


class PlannedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Arithmetic of a run on GPUs (docs/planning.md)."""

    gpu_bytes: Annotated[int, doc("Memory of the smallest GPU.")]
    rank: Annotated[PlannedRank | None, doc("None without a trainer.")] = None
    engine: Annotated[PlannedEngine | None, doc("None without engines.")] = None
    flow: Annotated[PlannedFlow | None, doc("None if an engine does not hold a longest sample.")] = None


class PlacementPlanned(Event, frozen=True, kw_only=True, tag="placement.planned"):
    """Appended by the launcher in each incarnation, before any process of the run starts. Ray's placement groups are
    made of it.
    """

    incarnation: Annotated[int, doc("Incarnation of the run; 0 until the first resumption.")]
    device: Annotated[str, doc("`cuda` or `cpu`.")]
    ranks: Annotated[int, doc("Ranks of the trainer.")]
    together: Annotated[int, doc("Consecutive ranks that belong on one machine: the tensor parallel size.")]
    engines: Annotated[int, doc("Engines.")]
    each: Annotated[int, doc("GPUs of an engine; 0 on CPUs.")]
    shared: Annotated[bool, doc("Whether engines are on the GPUs of ranks.")] = False
    machines: Annotated[
        tuple[PlannedMachine, ...],
        doc("Machines with GPUs, by address. On CPUs: all machines, the launcher's first; empty if there is one."),
    ] = ()
    bundles: Annotated[tuple[PlannedBundles, ...], doc("Bundles of all ranks and engines.")] = ()
    figures: Annotated[
        PlannedFigures | None, doc("Arithmetic of the plan; None on CPUs, or if the memory of a GPU is unknown.")
    ] = None
    warnings: Annotated[
        tuple[str, ...], doc("Estimates that exceed the machines. They refuse nothing, as they may be wrong.")
    ] = ()
