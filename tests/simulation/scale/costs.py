"""`Costs`: the size of a simulated run, and how long its engines, graders and trainer take."""

from __future__ import annotations

import math
import random
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import ConfigError
from schemas.rollouts import Sampling
from slime_events.core.config.engine import EngineSettings
from slime_events.loop.conductor.plan import Plan

STEPS = 10**6
"""Steps of the run: more than an hour has."""
MAY_BE_ZERO = ("max_staleness", "spread", "grading_s", "loading_s", "losses_per_hour", "seed")


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and times of a simulated run. Times are virtual."""

    engines: Annotated[int, doc("number of engines")] = 10_000
    open_samples: Annotated[int, doc("most open samples: rollout batch x samples of a group x (1 + max staleness)")] = (
        100_000
    )
    group_size: Annotated[int, doc("samples of a group")] = 8
    max_staleness: Annotated[int, doc("most versions that a sample may be behind")] = 3
    room: Annotated[int, doc("most samples in flight on an engine")] = 16
    tokens_per_s: Annotated[float, doc("tokens per second of each sample")] = 40.0
    mean_length: Annotated[float, doc("mean length of a response before the limit [tokens]; log-normal")] = 8192.0
    spread: Annotated[float, doc("standard deviation of the length's logarithm")] = 1.0
    longest: Annotated[int, doc("limit of a response [tokens]")] = 32_768
    prompt: Annotated[int, doc("length of a prompt [tokens]")] = 512
    grading_s: Annotated[float, doc("mean time of a grading [s]; exponential")] = 0.5
    step_s: Annotated[float, doc("time of a training step [s]")] = 40.0
    loading_s: Annotated[float, doc("mean time in which an engine loads weights and generates nothing [s]")] = 2.0
    chunk_s: Annotated[float | None, doc("time between two chunks of a sample [s]; None: the run's default")] = None
    cycle_s: Annotated[float, doc("shortest time between two cycles of the conductor [s]")] = 0.05
    losses_per_hour: Annotated[float, doc("engines that are lost in an hour")] = 60.0
    away_s: Annotated[float, doc("time until a lost engine is back [s]")] = 120.0
    seed: int = 1

    @property
    def chunks_s(self) -> float:
        """Time between two chunks of a sample [s]: after --chunk-seconds, or after --chunk-tokens on a GPU."""
        if self.chunk_s is not None:
            return self.chunk_s
        engine = EngineSettings(device="cuda").with_chunks_for(min(self.open_samples, self.engines * self.room))
        return min(engine.chunk_s, engine.chunk / self.tokens_per_s)

    @property
    def groups(self) -> int:
        """Groups of a step."""
        return self.open_samples // (self.group_size * (1 + self.max_staleness))

    def check(self) -> None:
        """Raise ConfigError if such a run cannot be simulated."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            if value < 0 or (value == 0 and name not in MAY_BE_ZERO):
                raise ConfigError(f"{name} is {value}: it must be above 0")
        if not self.groups:
            need = self.group_size * (1 + self.max_staleness)
            raise ConfigError(
                f"{self.open_samples} open samples are no step: a group of {self.group_size} at staleness "
                f"{self.max_staleness} needs {need}"
            )

    def plan(self) -> Plan:
        """Return the conductor's plan: any order of ends, without a filter."""
        return Plan(
            steps=STEPS,
            groups=self.groups,
            samples=self.group_size,
            sampling=Sampling(max_new_tokens=self.longest),
            max_staleness=self.max_staleness,
            in_prompt_order=False,
            verdicts_at_once=False,
        )

    def length(self, chance: random.Random) -> int:
        """Draw the length of a response [tokens]."""
        drawn = chance.lognormvariate(math.log(self.mean_length) - self.spread**2 / 2, self.spread)
        return max(1, min(self.longest, round(drawn)))
