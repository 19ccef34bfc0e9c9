"""Why a step may have come out otherwise than it was committed."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.runs import RunStarted
from slime_events.analysis.retrain.difference import Compared
from slime_events.analysis.retrain.retrained import Retrained

CHANGED = frozenset({Compared.REWARDS, Compared.BATCH, Compared.COMMITTED_BATCH})
"""These follow from the log alone: whoever trains has no part in them."""


def likely_causes(wrong: Retrained, started: RunStarted | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The likeliest first. environment: versions of the parts here, named as in run.started."""
    found = {one.compared for one in wrong.differences}
    if found & CHANGED:
        return (f"events of step {wrong.step} were changed after the run: `slime-events audit` says which do not fit",)
    then = started.environment if started is not None else {}
    others = [
        f"{part} {version} then, {environment.get(part, 'missing')} now"
        for part, version in then.items()
        if environment.get(part) != version
    ]
    causes = [f"other versions of the parts ({'; '.join(others)})"] if others else []
    if found == {Compared.OPTIMIZER}:
        causes.append("the run's ranks were laid out otherwise than its settings say: weights alone came out the same")
    causes.append("other hardware than the run's: the same instructions on another processor may round otherwise")
    causes.append(f"an event of step {wrong.step} was changed after the run together with every digest that names it")
    return tuple(causes)
