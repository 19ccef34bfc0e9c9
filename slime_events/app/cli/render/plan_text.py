"""A plan of a run for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slime_events.app.cli.render.text import paragraphs, table
from slime_events.core.machine.gpus import gpus
from slime_events.core.planning.assumptions import GIB
from slime_events.core.planning.placement import NodeShare
from slime_events.core.planning.plan import Plan, Verdict
from slime_events.core.planning.smallest import Remedy

GB, MB = 1e9, 1e6
VERDICTS = {
    Verdict.FITS: "the run fits",
    Verdict.IN_TURNS: "the run fits: ranks and engines use a shared GPU in turns",
    Verdict.TOO_SMALL: "the run does not fit",
}


def plan_text(plan: Plan, remedies: Sequence[Remedy] = (), unset: Sequence[str] = ()) -> str:
    """Return the arithmetic, what is missing, and the smallest changes that would fit."""
    return paragraphs(
        _head(plan),
        _nodes(plan),
        _memory(plan),
        _flow(plan),
        _verdict(plan, remedies),
        _listed("this version cannot start it:", plan.limits),
        _listed("slime-events train would still ask for:", unset),
    )


def _head(plan: Plan) -> str:
    shape, load = plan.shape, plan.load
    active = f", {shape.active / GB:.2f} billion for a token" if shape.experts else ""
    return "\n".join((
        f"model     {shape.parameters / GB:.2f} billion parameters{active}, {shape.layers} layers",
        f"machines  {plan.facts}, by {plan.facts.source}",
        f"needs     {gpus(plan.needs.total)}: {plan.needs}",
        f"samples   at most {load.longest:,} tokens, mean {load.mean:,.0f}, of which {load.response:,.0f} generated",
    ))  # fmt: skip


def _nodes(plan: Plan) -> str:
    """Return the machines; equal neighbours are one row."""
    if plan.nodes is None:
        return ""
    rows: list[tuple[object, ...]] = []
    begin = 0
    for index in range(1, len(plan.nodes) + 1):
        if index < len(plan.nodes) and _same(plan.nodes[begin], plan.nodes[index]):
            continue
        rows.append(_node_row(plan, begin, index))
        begin = index
    rank, engine = plan.shares
    counted = f"Ray counts {rank:g} of a GPU for a rank, and {engine:g} of each GPU of an engine." * plan.needs.shared
    return "\n".join(filter(None, (table(("machines", "GPUs of each", "ranks of each", "engines"), rows), counted)))


def _same(first: NodeShare, second: NodeShare) -> bool:
    return (first.gpus, first.ranks, len(first.engines)) == (second.gpus, second.ranks, len(second.engines))


def _node_row(plan: Plan, begin: int, end: int) -> tuple[object, ...]:
    assert plan.nodes is not None
    nodes = plan.nodes[begin:end]
    engines = sorted({engine for node in nodes for engine in node.engines})
    named = "none" if not engines else _span(engines[0], engines[-1])
    return _span(begin, end - 1), nodes[0].gpus, nodes[0].ranks, named


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"


def _memory(plan: Plan) -> str:
    rows: list[tuple[object, ...]] = []
    if (rank := plan.rank) is not None:
        parts = (rank.weights, rank.gradients, rank.optimizer, rank.activations, rank.logits, rank.runtime)
        rows.append(("rank", *map(_gib, parts), None, _gib(rank.total)))
    if (engine := plan.engine) is not None:
        rows.append(("engine", _gib(engine.weights), None, None, None, None, _gib(engine.runtime), _gib(engine.cache),
                     _gib(engine.total)))  # fmt: skip
    if not rows:
        return ""
    head = ("GiB a GPU", "weights", "gradients", "optimizer", "activations", "logits", "runtime", "cache", "total")
    lines = [table(head, rows)]
    if plan.shared_bytes is not None and plan.turn_bytes is not None:
        lines.append(f"shared GPU: {_gib(plan.shared_bytes)} GiB side by side, {_gib(plan.turn_bytes)} in turns")
    if engine is not None:
        lines.append(
            f"an engine's cache holds {engine.cached:,} tokens of {engine.token:,} bytes on a GPU: "
            f"{engine.cached // plan.load.longest:,} of the longest samples"
        )
    if plan.host_bytes:
        lines.append(f"a rank keeps {_gib(plan.host_bytes)} GiB of host memory: offloaded state, frozen models")
    return "\n".join(lines)


def _flow(plan: Plan) -> str:
    speed, volumes = plan.speed, plan.volumes
    if speed is None or volumes is None:
        return ""
    lines = []
    if speed.tokens_per_engine:
        lines.append(
            f"an engine generates {speed.tokens_per_engine:,.0f} tokens/s, with {speed.running:,.0f} samples at a time"
        )
    lines += [
        f"a step takes {speed.step_s:,.0f} s: {speed.generate_s:,.0f} s to generate, {speed.train_s:,.0f} s to train"
        f"{', at the same time' * (speed.step_s < speed.generate_s + speed.train_s)}",
        f"a weight version has {volumes.version_bytes / GB:,.1f} GB, and takes {volumes.version_s:,.1f} s to engines",
        f"each second the log grows by {volumes.log_bytes_s / MB:,.2f} MB, the archive by "
        f"{volumes.archive_bytes_s / MB:,.2f} MB",
        f"disk after a day: {volumes.disk_a_day / GB:,.0f} GB (log {volumes.log_a_day / GB:,.0f}, archive "
        f"{volumes.archive_a_day / GB:,.0f}, weight versions {volumes.weights_kept / GB:,.0f}, checkpoints "
        f"{volumes.checkpoints_kept / GB:,.0f})",
    ]
    return "\n".join(("estimates, with the assumptions of docs/planning.md:", *(f"  {line}" for line in lines)))


def _verdict(plan: Plan, remedies: Sequence[Remedy]) -> str:
    lines = [VERDICTS[plan.verdict]]
    lines += [f"  - {shortage.resource}: {shortage.reason}" for shortage in plan.shortages]
    if remedies:
        lines.append("smallest changes that would fit:")
        lines += [
            f"  - {remedy.change}: {gpus(remedy.gpus)}{', in turns' * (remedy.verdict is Verdict.IN_TURNS)}"
            for remedy in remedies
        ]
    return "\n".join(lines)


def _listed(head: str, lines: Iterable[str]) -> str:
    rows = [f"  - {line}" for line in lines]
    return "\n".join((head, *rows)) if rows else ""


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"
