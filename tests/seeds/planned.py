"""Plans of the launches of slime's users, on the machines that they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from actors.megatron.families.registry import architecture_of
from schemas.errors import SlimeEventsError
from slime_events.algorithms.train_arguments import parse_train
from slime_events.app.launch.machine_facts import described
from slime_events.app.launch.run_plan import planned_model
from slime_events.core.config.settings import TrainSettings
from slime_events.core.planning.assumptions import Assumptions
from slime_events.core.planning.model import PlannedModel
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.plan import Plan, Verdict, make_plan
from tests.seeds.__main__ import HERE, read_launches
from tests.seeds.checkpoints import config_of, model_of

SIZES = (80, 141)
"""GiB of an H100 and of an H200, about."""
QUANTIZED = {"INT4": 0.5625, "Kimi-K2-Thinking": 0.5625, "FP8": 1.0, "fp8": 1.0}
"""Part of a checkpoint's name to bytes of a parameter in engines: INT4 has a 16 bit scale for 32 values."""
GLM = "scripts/run-glm4.7-355B-A32B"


@dataclass(frozen=True, slots=True)
class Planned:
    """A launch and its plan."""

    name: str
    model: str
    settings: TrainSettings
    arithmetic: PlannedModel
    plan: Plan


def words_of() -> dict[str, list[str]]:
    """Return the flags of each launch, and of the largest one on 16 machines."""
    launches = read_launches(HERE / "launches.json")
    return launches | {f"{GLM}, 16 nodes": [*launches[GLM], "--actor-num-nodes", "16"]}


def plan_words(name: str, words: Sequence[str], *, nodes: int | None = None, gib: float | None = None) -> Planned:
    """Plan a launch. nodes: None: as many as it names. gib: memory of a GPU; None: the smallest size that fits."""
    settings = parse_train(words).settings
    checkpoint = settings.trainer.hf_checkpoint
    model = planned_model(settings, architecture_of(config_of(checkpoint), checkpoint))
    served = settings.engine.hf_checkpoint.rstrip("/")
    sizes = [size for part, size in QUANTIZED.items() if part in served]
    assumed = Assumptions(engine_weight_bytes=min(sizes, default=2.0))
    needs = Needs.of(settings)
    plans = [
        make_plan(described(nodes, None, size, None, needs), settings, model, assumed)
        for size in ((gib,) if gib else SIZES)
    ]
    plan = next((plan for plan in plans if plan.verdict is not Verdict.TOO_SMALL), plans[0])
    return Planned(name, model_of(checkpoint), settings, model, plan)


def planned_launches() -> Iterator[Planned]:
    """Yield the plans of all launches whose settings and model are supported."""
    for name, words in words_of().items():
        try:
            yield plan_words(name, words)
        except SlimeEventsError:  # an exception of `python -m tests.seeds`
            continue


def with_share(planned: Planned, share: float) -> Plan:
    """Return the plan with another share of the GPU for engines."""
    engine = planned.settings.engine
    changed = replace(engine, sglang=engine.sglang | {"mem_fraction_static": share})
    return make_plan(planned.plan.facts, replace(planned.settings, engine=changed), planned.arithmetic, Assumptions())
