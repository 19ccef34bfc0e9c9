"""Make the tables of `docs/planning.md`: `python -m tests.seeds.planning_page docs/planning.md`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from actors.megatron.layout import Layout
from slime_events.core.planning.assumptions import GIB, Assumptions
from slime_events.core.planning.plan import Resource
from slime_events.core.planning.smallest import smallest_fits
from tests.seeds.exceptions import LAUNCHES, MESSAGES
from tests.seeds.planned import Planned, planned_launches
from tools.page_command import update_page

BEGIN = "<!-- made by tests.seeds.planning_page: {} -->\n"
END = "<!-- end -->\n"
MEMORY = (
    "launch",
    "model",
    "machines",
    "layout",
    "rank: state + activations + logits + runtime",
    "engine: weights + cache",
    "a GPU needs",
    "verdict",
)
FLOW = ("launch", "tokens/s of an engine", "step", "weight version", "log", "disk after a day")


def document(page: str) -> str:
    """Return the page with new tables."""
    planned = list(planned_launches())
    parts = {
        "memory": _table(MEMORY, map(_memory, planned)),
        "flow": _table(FLOW, (_flow(each) for each in planned if each.plan.speed is not None)),
        "assumptions": _table(("name", "default", "meaning"), _assumptions()),
        "exceptions": _table(("launch, or message", "why"), _exceptions()),
    }
    for name, text in parts.items():
        before, begin, rest = page.partition(BEGIN.format(name))
        page = before + begin + "\n" + text + "\n" + rest[rest.index(END) :]
    return page


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _memory(each: Planned) -> tuple[str, ...]:
    plan, layout = each.plan, Layout.of(each.settings.trainer)
    cut = {"TP": layout.tensor, "PP": layout.pipeline, "CP": layout.context, "EP": layout.expert}
    axes = " ".join(f"{name}{size}" for name, size in cut.items() if size > 1) or "-"
    rank, engine, needs = plan.rank, plan.engine, plan.needs
    parts = "-"
    if rank is not None:
        parts = f"{_gib(rank.state)} + {_gib(rank.activations)} + {_gib(rank.logits)} + {_gib(rank.runtime)} = "
        parts += f"{_gib(rank.total)}"
    served = "none"
    if engine is not None:
        served = f"{needs.engines} of {needs.each} GPUs: {_gib(engine.weights)} + {_gib(engine.cache)}"
    most = max(part.total for part in (rank, engine) if part is not None)
    needed = _gib(most) if plan.shared_bytes is None else f"{_gib(plan.shared_bytes)}; in turns {_gib(plan.turn_bytes)}"
    return each.name, each.model, str(plan.facts), axes, parts, served, needed, _verdict(each)


def _verdict(each: Planned) -> str:
    plan = each.plan
    if not plan.shortages:
        return plan.verdict
    text = f"{plan.verdict}: {plan.shortages[0].reason}"
    if plan.shortages[0].resource is not Resource.SHARED_MEMORY:
        return text
    first = next(iter(smallest_fits(plan, each.settings, each.arithmetic)), None)
    return text if first is None else f"{text}. It fits with `{first.change}`"


def _flow(each: Planned) -> tuple[str, ...]:
    speed, volumes = each.plan.speed, each.plan.volumes
    assert speed is not None
    assert volumes is not None
    return (
        each.name,
        f"{speed.tokens_per_engine:,.0f}" if speed.tokens_per_engine else "-",
        f"{speed.step_s:,.0f} s ({speed.generate_s:,.0f} + {speed.train_s:,.0f})",
        f"{volumes.version_bytes / 1e9:,.1f} GB, {volumes.version_s:,.0f} s",
        f"{volumes.log_bytes_s / 1e6:.2f} MB/s",
        f"{volumes.disk_a_day / 1e9:,.0f} GB",
    )


def _assumptions() -> Iterable[tuple[str, str, str]]:
    for field in msgspec.json.schema_components([Assumptions])[1]["Assumptions"]["properties"].items():
        name, about = field
        yield f"`{name}`", f"{about['default']:g}", about["description"]


def _exceptions() -> Iterable[tuple[str, str]]:
    yield from LAUNCHES.items()
    yield from ((f"`{message}`", reason) for message, reason in MESSAGES.items())


def _gib(size: int | None) -> str:
    return f"{(size or 0) / GIB:.1f}"


if __name__ == "__main__":
    update_page(__doc__, document)
