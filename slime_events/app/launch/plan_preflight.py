"""`check_memory`: refuse a run whose model cannot fit on the GPUs, before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import InvalidValue
from slime_events.app.launch.machine_facts import facts_of
from slime_events.app.launch.run_plan import planned_model
from slime_events.core.config.settings import TrainSettings
from slime_events.core.machine.gpus import Machine
from slime_events.core.planning.assumptions import Assumptions
from slime_events.core.planning.model import PlannedModel
from slime_events.core.planning.plan import Plan, Resource, make_plan
from slime_events.core.planning.smallest import smallest_fits

MEMORY = (Resource.RANK_MEMORY, Resource.ENGINE_MEMORY, Resource.SHARED_MEMORY)


def check_memory(settings: TrainSettings, here: Sequence[Machine]) -> None:
    """Raise InvalidValue if weights, gradients, optimizer and cache alone exceed the memory of a GPU.

    here: machines with GPUs. Estimates, such as activations, refuse nothing: `slime-events plan` shows them.
    """
    facts = facts_of(here)
    if facts.gpu_bytes is None:
        return
    model = planned_model(settings)
    plan = make_plan(facts, settings, model, Assumptions())
    certain = [shortage.reason for shortage in plan.shortages if shortage.certain and shortage.resource in MEMORY]
    if certain:
        raise InvalidValue("; ".join(certain) + changes_text(plan, settings, model))


def changes_text(plan: Plan, settings: TrainSettings, model: PlannedModel) -> str:
    """Return a sentence with the smallest changes that would fit, to put behind a reason; empty if there is none."""
    changes = " | ".join(remedy.change for remedy in smallest_fits(plan, settings, model))
    return f". Smallest changes that would fit: {changes}" if changes else ""
