"""`make_plan`: GPUs, machines, memory and data volumes of a run, and what is missing for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from schemas.doc import doc
from slime_events.core.config.derivations import on_device
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.machine.gpus import gpus
from slime_events.core.planning.assumptions import GIB, Assumptions
from slime_events.core.planning.engine_memory import EngineBytes, engine_bytes
from slime_events.core.planning.facts import Facts
from slime_events.core.planning.model import ModelShape, PlannedModel, RankBytes, TokenLoad
from slime_events.core.planning.needs import ENGINE_SHARE, RANK_SHARE, Needs
from slime_events.core.planning.placement import NodeShare
from slime_events.core.planning.speed import Speed, speed_of
from slime_events.core.planning.volumes import Volumes, volumes_of


class Verdict(StrEnum):
    """Whether a run fits on its machines."""

    FITS = "fits"
    IN_TURNS = "fits in turns"
    TOO_SMALL = "does not fit"


class Resource(StrEnum):
    """A resource that may be too small."""

    GPUS = "GPUs"
    RANK_MEMORY = "memory of a rank"
    ENGINE_MEMORY = "memory of an engine"
    SHARED_MEMORY = "memory of a shared GPU"
    HOST_MEMORY = "memory of a machine"
    LAYOUT = "layout"


@dataclass(frozen=True, slots=True)
class Shortage:
    """Something that a run needs and the machines do not have."""

    resource: Resource
    needed: Annotated[int, doc("GPUs, or bytes.")]
    available: int
    reason: Annotated[str, doc("The problem, in one sentence with the numbers.")]
    certain: Annotated[bool, doc("Exact numbers alone say so, without an estimate.")] = True


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run on GPUs."""

    needs: Needs
    facts: Facts
    assumed: Assumptions
    shape: ModelShape
    load: TokenLoad
    nodes: Annotated[tuple[NodeShare, ...] | None, doc("The part of each machine; None if it does not all fit.")]
    rank: Annotated[RankBytes | None, doc("Of the fullest rank; None without a trainer, or if it cannot be divided.")]
    engine: Annotated[EngineBytes | None, doc("None without engines, or if the memory of a GPU is unknown.")]
    shared_bytes: Annotated[int | None, doc("Bytes of a rank and an engine side by side on a shared GPU.")]
    turn_bytes: Annotated[int | None, doc("The same if one of the two always sleeps.")]
    speed: Speed | None
    volumes: Volumes | None
    shortages: tuple[Shortage, ...]
    limits: Annotated[tuple[str, ...], doc("Parts of the plan that this version cannot start.")]

    @property
    def verdict(self) -> Verdict:
        """Whether the run fits. In turns: it would not fit if ranks and engines kept a shared GPU's memory."""
        if self.shortages:
            return Verdict.TOO_SMALL
        beside, size = self.shared_bytes or 0, self.facts.gpu_bytes
        return Verdict.IN_TURNS if size is not None and beside > size else Verdict.FITS

    @property
    def host_bytes(self) -> int:
        """Host memory of a rank."""
        return _host_bytes(self.needs, self.rank)

    @property
    def shares(self) -> tuple[float, float]:
        """Parts of a GPU that Ray counts for a rank and for each GPU of an engine."""
        return (RANK_SHARE, ENGINE_SHARE) if self.needs.shared else (1.0, 1.0)


def make_plan(facts: Facts, settings: TrainSettings, model: PlannedModel, assumed: Assumptions) -> Plan:
    """Return the plan of a run. settings: derived, of any device; the plan is that of GPUs."""
    settings = on_device(settings, "cuda")
    needs, load = Needs.of(settings), token_load(settings, assumed)
    nodes = needs.places(facts.gpus)
    rank, engine, problem = None, None, None
    if needs.ranks and (problem := model.refusal(settings.trainer)) is None:
        rank = model.rank(settings.trainer, load, assumed)
    if needs.engines and facts.gpu_bytes is not None:
        engine = _tightest(model.shape, settings.engine, facts.gpu_bytes, assumed)
    together, in_turn = _on_shared(needs, rank, engine, assumed)
    speed = volumes = None
    if facts.gpu_bytes is not None and problem is None and (engine is None or engine.cached >= load.longest):
        speed = speed_of(settings, needs, model, engine, load, assumed)
        volumes = volumes_of(settings, needs, model.shape, load, speed, assumed)
    shortages = [] if problem is None else [Shortage(Resource.LAYOUT, 0, 0, problem)]
    shortages += _too_few(facts, needs, nodes)
    if facts.gpu_bytes is not None:
        shortages += _too_small(facts.gpu_bytes, needs, rank, engine, load, in_turn if needs.turns else together)
    shortages += _host_shortage(facts, needs, rank, nodes)
    return Plan(
        needs, facts, assumed, model.shape, load, nodes, rank, engine, together, in_turn, speed, volumes,
        tuple(shortages), limits_of(facts, needs),
    )  # fmt: skip


def _tightest(shape: ModelShape, engine: EngineSettings, gpu_bytes: int, assumed: Assumptions) -> EngineBytes:
    """Return the memory of the engine that makes rollouts, of that with the smallest cache if there are groups."""
    kinds = [engine.of_group(group) for group in engine.groups if group.trained and group.engines] or [engine]
    return min((engine_bytes(shape, kind, gpu_bytes, assumed) for kind in kinds), key=lambda each: each.cached)


def token_load(settings: TrainSettings, assumed: Assumptions) -> TokenLoad:
    """Return the lengths of samples by the limits of the settings."""
    rollout = settings.rollout
    prompt = min(rollout.longest_prompt or assumed.prompt_tokens, assumed.prompt_tokens)
    longest_prompt = rollout.rollout_max_prompt_len or prompt
    response = rollout.rollout_max_response_len * assumed.response_share
    longest = longest_prompt + rollout.rollout_max_response_len
    if rollout.rollout_max_context_len is not None:
        longest = min(longest, rollout.rollout_max_context_len)
    return TokenLoad(longest, prompt + response, response, rollout.rollout_max_response_len)


def _on_shared(
    needs: Needs, rank: RankBytes | None, engine: EngineBytes | None, assumed: Assumptions
) -> tuple[int | None, int | None]:
    """Return the bytes of a shared GPU: with rank and engine side by side, and with turns."""
    if not needs.shared or rank is None or engine is None:
        return None, None
    return rank.total + engine.total, max(rank.total, engine.total) + int(assumed.asleep_gib * GIB)


def _too_few(facts: Facts, needs: Needs, nodes: tuple[NodeShare, ...] | None) -> list[Shortage]:
    if nodes is not None:
        return []
    needed = needs.total
    if needed > facts.total:
        reason = f"the run needs {gpus(needed)} ({needs}), and there are {facts.total}: {facts}"
    else:
        reason = (
            f"{needs} do not fit on {facts}: an engine's {gpus(needs.each)} must be on one machine, or be all GPUs of "
            "several"
        )
    return [Shortage(Resource.GPUS, needed, facts.total, reason)]


def _too_small(
    size: int, needs: Needs, rank: RankBytes | None, engine: EngineBytes | None, load: TokenLoad, together: int | None
) -> list[Shortage]:
    """Return shortages of a GPU's memory. size: of a GPU."""
    shortages = []
    if rank is not None and rank.total > size:
        parts = f"weights, gradients and optimizer {_gib(rank.state)}, activations and logits "
        parts += f"{_gib(rank.activations + rank.logits)}, runtime {_gib(rank.runtime)}"
        reason = f"a trainer rank needs {_gib(rank.total)} GiB ({parts}), and a GPU has {_gib(size)}"
        shortages.append(Shortage(Resource.RANK_MEMORY, rank.total, size, reason, certain=rank.state > size))
    if engine is not None:
        least = engine.weights + load.longest * engine.token
        if engine.cached < load.longest:
            reason = (
                f"an engine of {gpus(needs.each)} needs {_gib(least)} GiB on each (weights {_gib(engine.weights)}, and "
                f"the cache of a sample of {load.longest:,} tokens), and SGLang takes {_gib(engine.static)}"
            )
            certain = engine.weights > engine.static
            shortages.append(Shortage(Resource.ENGINE_MEMORY, least, engine.static, reason, certain))
        elif engine.total > size:
            reason = (
                f"an engine needs {_gib(engine.total)} GiB (weights and cache {_gib(engine.static)}, runtime "
                f"{_gib(engine.runtime)}), and a GPU has {_gib(size)}"
            )
            shortages.append(Shortage(Resource.ENGINE_MEMORY, engine.total, size, reason, certain=False))
    if not shortages and together is not None and together > size and rank is not None and engine is not None:
        how = "in turns" if needs.turns else "side by side"
        reason = (
            f"a rank ({_gib(rank.total)} GiB) and an engine ({_gib(engine.total)} GiB) {how} need "
            f"{_gib(together)} GiB, and a GPU has {_gib(size)}"
        )
        certain = not needs.turns and rank.state + engine.static > size
        shortages.append(Shortage(Resource.SHARED_MEMORY, together, size, reason, certain))
    return shortages


def _host_shortage(
    facts: Facts, needs: Needs, rank: RankBytes | None, nodes: tuple[NodeShare, ...] | None
) -> list[Shortage]:
    if facts.host_bytes is None or rank is None or nodes is None:
        return []
    most = max(node.ranks for node in nodes)
    needed = most * _host_bytes(needs, rank)
    if needed <= facts.host_bytes:
        return []
    reason = (
        f"{most} ranks of a machine need {_gib(needed)} GiB of host memory (offloaded state, frozen models), and a "
        f"machine has {_gib(facts.host_bytes)}"
    )
    return [Shortage(Resource.HOST_MEMORY, needed, facts.host_bytes, reason)]


def _host_bytes(needs: Needs, rank: RankBytes | None) -> int:
    """Return the host memory of a rank. In turns, weights and optimizer wait there; gradients are discarded."""
    if rank is None:
        return 0
    return rank.host + (rank.weights + rank.optimizer if needs.turns else 0)


def limits_of(facts: Facts, needs: Needs) -> tuple[str, ...]:
    """Return what this version cannot start, although the machines may be large enough."""
    limits = []
    if others := list(dict.fromkeys(group.model for group in needs.groups if not group.trained)):
        limits.append(f"memory of the engines of {', '.join(others)} is not counted: SGLang checks it when they start")
    if needs.external:
        limits.append(f"speed and memory of the {needs.external} engines that run already are unknown, and not counted")
    if needs.shared and needs.each > 1:
        limits.append(f"ranks share GPUs with engines of one GPU only, and these have {needs.each}")
    if needs.turns and needs.ranks > facts.largest > 0:
        limits.append("ranks and engines take turns on one machine only: give --no-offload-train --no-offload-rollout")
    if needs.engines and needs.each > facts.largest > 0:
        limits.append(
            f"an engine that a run starts is on one machine, and {needs.each} GPUs are on "
            f"{-(-needs.each // facts.largest)}: start it as a server (docs/external-engines.md)"
        )
    return tuple(limits)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"
