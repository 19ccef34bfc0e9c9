"""`Policy`: the settings that a prediction may change, and the combinations of their values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from schemas.doc import doc
from schemas.errors import InvalidValue
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.plan import Plan, make_plan

Order = Literal["auto", "prompt", "completion"]
MOST = 64
"""Most combinations of one table."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a run that a prediction may change, by the names of their flags."""

    max_staleness: int
    over_sampling_batch_size: int | None
    accept_order: Order
    rollout_batch_size: int
    update_weights_interval: int
    rollout_num_engines: Annotated[int, doc("number of engines")]
    rm_workers: Annotated[int, doc("grader processes")]
    chunk_tokens: Annotated[int, doc("tokens of a sample between two appends of its progress")]

    @classmethod
    def of(cls, settings: TrainSettings) -> Policy:
        """Return the policy of a run."""
        rollout = settings.rollout
        return cls(
            max_staleness=rollout.max_staleness,
            over_sampling_batch_size=rollout.over_sampling_batch_size,
            accept_order=rollout.accept_order,
            rollout_batch_size=rollout.rollout_batch_size,
            update_weights_interval=settings.trainer.update_weights_interval,
            rollout_num_engines=settings.engine.replicas,
            rm_workers=settings.reward.rm_workers,
            chunk_tokens=settings.engine.chunk,
        )

    def plan(self, settings: TrainSettings, steps: int) -> Plan:
        """Return the conductor's plan of a run with this policy. steps: number of steps to train."""
        rollout = replace(
            settings.rollout,
            num_rollout=steps,
            max_staleness=self.max_staleness,
            over_sampling_batch_size=self.over_sampling_batch_size,
            accept_order=self.accept_order,
            rollout_batch_size=self.rollout_batch_size,
        )
        trainer = replace(settings.trainer, update_weights_interval=self.update_weights_interval)
        return make_plan(rollout, settings.evaluation, trainer, settings.data)

    def changed(self, base: Policy) -> dict[str, Any]:
        """Return the values that differ from another policy, by flag name without dashes."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) != getattr(base, name)}


def policies(base: Policy, values: dict[str, Sequence[Any]]) -> list[Policy]:
    """Return all combinations of these values, in order; settings without values stay. Raises InvalidValue."""
    names = [name for name, options in values.items() if options]
    count = 1
    for name in names:
        count *= len(set(values[name]))
    if count > MOST:
        raise InvalidValue(f"these values make {count} combinations; give at most {MOST}")
    chosen = [
        replace(base, **dict(zip(names, row, strict=True)))
        for row in product(*(dict.fromkeys(values[n]) for n in names))
    ]
    for policy in chosen:
        _check(policy)
    return chosen


def _check(policy: Policy) -> None:
    least = {"max_staleness": 0}
    for name in policy.__struct_fields__:
        value = getattr(policy, name)
        if isinstance(value, int) and value < least.get(name, 1):
            raise InvalidValue(f"{_flag(name)} is {value}: it must be at least {least.get(name, 1)}")
    if policy.accept_order not in get_args(Order):
        raise InvalidValue(f"--accept-order is {policy.accept_order}: it must be one of {', '.join(get_args(Order))}")
    draw, groups = policy.over_sampling_batch_size, policy.rollout_batch_size
    if draw is not None and draw < groups:
        raise InvalidValue(
            f"--over-sampling-batch-size is {draw} and --rollout-batch-size is {groups}: a single top-up must be able "
            "to fill a step"
        )
    if policy.max_staleness < policy.update_weights_interval - 1:
        raise InvalidValue(
            f"--update-weights-interval is {policy.update_weights_interval}, so rollouts are up to "
            f"{policy.update_weights_interval - 1} versions behind: --max-staleness is {policy.max_staleness}, and "
            "must be at least that"
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
