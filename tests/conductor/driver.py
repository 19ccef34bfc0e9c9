"""`Driver`: the conductor's decisions against a world that ends samples in any order. No shell and no clock."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from functools import partial

from schemas.batches import BatchSealed
from schemas.codec import decode, encode
from schemas.envelope import enclose
from schemas.event import Event, Purpose
from schemas.prompts import Source
from schemas.rewards import RewardFailureKind
from schemas.rollouts import (
    FailureKind,
    RolloutRequested,
    Sampling,
    WeightSpan,
)
from slime_events.core.state.apply import apply
from slime_events.core.state.group import GroupState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.accept import GroupFilter
from slime_events.loop.conductor.decide import decide, evals_due, is_broken, is_complete, prompts_to_draw, with_requests
from slime_events.loop.conductor.draw import requests_for
from slime_events.loop.conductor.plan import Plan
from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.filters.decide import run_filter
from slime_events.plugins.sample_view import group_samples
from storage.log import Recorded
from tests import made
from tests.plans import fields_of_plan

SAMPLING = Sampling(max_new_tokens=8)


def make_plan(**changes: object) -> Plan:
    """A small plan."""
    fields: dict[str, object] = {"steps": 4, "groups": 3, "samples": 2, "sampling": SAMPLING}
    return Plan(**(fields | fields_of_plan(changes, SAMPLING)))  # type: ignore[arg-type]


def keep_all(group: GroupState):
    """The judge of a run without a filter."""
    return run_filter(None, None, group_samples(group))


def dropping(share: float) -> GroupFilter:
    """A judge that drops a share of the groups, each by its own name."""

    def judge(group: GroupState):
        keep = share < hashlib.sha256(group.group.encode()).digest()[0] / 256
        return run_filter(lambda args, samples: DynamicFilterOutput(keep, "by its name"), None, group_samples(group))

    return judge


class Driver:
    """One run. `requests`: of samples that have not ended, by sample id, in the order they were asked for; `asked`:
    where in the log. `begun`: versions of the tokens in chunks. `boundary`: where a batch that suspends was sealed.
    """

    def __init__(self, plan: Plan, judge: GroupFilter = keep_all, eval_prompts: int = 2) -> None:
        self.plan, self.judge, self.eval_prompts = plan, judge, eval_prompts
        self.state = RunState(run="drive")
        self.log: list[Recorded] = []
        self.requests: dict[str, RolloutRequested] = {}
        self.ungraded: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        self.begun: dict[str, list[int]] = {}
        self.boundary = 0
        self.drawn = 0
        self.say(made.started())
        self.say(made.published(url="", bytes=0))
        self.settle()

    def say(self, event: Event) -> None:
        """Append one event, as it comes back from the log, and fold it in."""
        data = encode(enclose("drive", event, at=len(self.log), producer="test"))
        envelope = decode(data)
        self.log.append(Recorded(len(self.log) + 1, envelope.subject, envelope, data))
        apply(self.state, self.log[-1])
        if isinstance(event, RolloutRequested):
            self.requests[event.sample] = event
            self.attempts[event.sample] = len(self.log)
        elif isinstance(event, BatchSealed) and event.suspends:
            self.boundary = len(self.log)

    def settle(self) -> None:
        """Let the conductor speak until it has nothing to say."""
        while not is_broken(self.state, self.plan):
            events = decide(self.state, self.plan, self.judge, lambda raw, _: list(raw))
            events += self._draw() + self._evals()
            if not events:
                return
            for event in events:
                self.say(event)

    def _draw(self) -> list[Event]:
        drawn = []
        for _ in range(prompts_to_draw(self.state, self.plan)):
            prompt = made.submitted(f"g{self.drawn:04d}", source=Source(path="f", offset=self.drawn))
            self.drawn += 1
            drawn.append(prompt)
        return with_requests(drawn, self.state, self.plan)

    def _evals(self) -> list[Event]:
        events: list[Event] = []
        for name, version in evals_due(self.state, self.plan):
            for index in range(self.eval_prompts):
                prompt = made.submitted(
                    f"eval-{name}-v{version}-{index}",
                    source=Source(path=name, offset=index),
                    purpose=Purpose.EVAL,
                    dataset=name,
                    version=version,
                )
                events += [
                    prompt,
                    *requests_for(prompt.group, prompt.tokens, self.plan, evaluation=name, version=version),
                ]
        return events

    def begin(self, sample: str, version: int | None = None) -> None:
        """A chunk of a token, by the newest weights or the given ones."""
        request = self.requests[sample]
        versions = self.begun.setdefault(sample, [])
        versions.append(self.state.published if version is None else version)
        self.say(
            made.progressed(
                sample,
                [1],
                attempt=request.attempt,
                start=len(versions) - 1,
                log_probs=[0.0],
                spans=(WeightSpan(len(versions) - 1, len(versions), versions[-1]),),
            )
        )

    def must_rest(self, sample: str) -> bool:
        """Whether an engine that looks at the log lets the rollout rest."""
        return self.requests[sample].purpose is Purpose.TRAIN and self.attempts[sample] < self.boundary

    def rest(self, sample: str) -> None:
        """The rollout rests with the tokens that its chunks hold."""
        request = self.requests.pop(sample)
        self.say(made.suspended(sample, len(self.begun.get(sample, ())), attempt=request.attempt))

    def complete(self, sample: str) -> None:
        """The rollout ends, by the newest weights; its reward is still to come."""
        request = self.requests.pop(sample)
        begun = self.begun.pop(sample, [])
        versions = [*begun, self.state.published]
        self.ungraded[sample] = request.group
        self.say(
            made.completed(
                sample,
                group=request.group,
                attempt=request.attempt,
                start=len(begun),
                length=len(versions),
                text=sample,
                spans=tuple(WeightSpan(i, i + 1, v) for i, v in enumerate(versions)),
                digest=hashlib.sha256(sample.encode()).hexdigest(),
            )
        )

    def fail(self, sample: str, kind: FailureKind = FailureKind.ENGINE) -> None:
        """The rollout fails."""
        request = self.requests.pop(sample)
        self.say(made.failed(sample, group=request.group, attempt=request.attempt, kind=kind, message="broke"))

    def grade(self, sample: str, value: float | None = 1.0) -> None:
        """A reward, or that there is none."""
        group = self.ungraded.pop(sample)
        if value is None:
            self.say(made.reward_failed(sample, RewardFailureKind.NONE, group=group, message="None", grader="t"))
        else:
            self.say(made.assigned(sample, value, group=group, grader="t"))

    def finish_group(self, group: str, value: float = 1.0) -> None:
        """All samples of a group end well; the conductor has not looked yet."""
        for sample in [s for s, request in self.requests.items() if request.group == group]:
            self.complete(sample)
            self.grade(sample, value)

    def commit(self) -> None:
        """The trainer commits the next sealed step."""
        step = min(self.state.sealed)
        version = step + 1
        self.say(
            made.committed(
                step,
                batch_digest=self.state.sealed[step].digest,
                version=version,
                weights_digest=f"d{version}",
                optimizer_digest="",
                samples=0,
                tokens=0,
            )
        )
        if version % self.plan.publish_every == 0 or version == self.plan.steps:
            self.say(made.published(version, parent=step, url="", bytes=0))
        if self.plan.saves.due(version):
            self.say(made.saved(version, url="", weights_digest="", optimizer_digest=""))

    def events(self, kind: type) -> list:
        """All events of a type, in order."""
        return [recorded.envelope.event for recorded in self.log if isinstance(recorded.envelope.event, kind)]

    @property
    def batches(self) -> list[BatchSealed]:
        """In order."""
        return self.events(BatchSealed)

    def play(
        self,
        chance: random.Random,
        *,
        engine_fails: float = 0.0,
        invalid: float = 0.0,
        ungraded: float = 0.0,
        older: float = 0.0,
        check: Callable[[Driver], None] = lambda driver: None,
        most: int = 20_000,
    ) -> None:
        """Let the world act in random order until the run is complete or broken; raise AssertionError if nobody can.

        older: share of chunks by weights that are older than what was asked for, which no engine should give.
        """
        for _ in range(most):
            check(self)
            if is_complete(self.state, self.plan) or is_broken(self.state, self.plan):
                return
            moves: list[Callable[[], None]] = [self.commit] if self.state.sealed else []
            if self.requests:
                moves += [lambda: self._move(chance, engine_fails, invalid, older)] * 3
            if self.ungraded:
                value = None if chance.random() < ungraded else chance.random()
                moves += [partial(self._grade_any, chance, value)] * 2
            assert moves, f"stuck: {self.state}"
            chance.choice(moves)()
            if chance.random() < 0.7 or not (self.state.sealed or self.requests or self.ungraded):
                self.settle()
        raise AssertionError("the run does not end")

    def _grade_any(self, chance: random.Random, value: float | None) -> None:
        self.grade(chance.choice(list(self.ungraded)), value)

    def _move(self, chance: random.Random, engine_fails: float, invalid: float, older: float) -> None:
        sample = chance.choice(list(self.requests))
        begun = self.begun.get(sample, [])
        drawn = chance.random()
        if drawn < engine_fails:
            self.fail(sample)
        elif drawn < engine_fails + invalid:
            self.fail(sample, FailureKind.INVALID)
        elif self.must_rest(sample) and chance.random() < 0.8:
            self.rest(sample)
        elif len(begun) < chunks_of(sample) and chance.random() < 0.8:
            oldest = 0 if chance.random() < older else max(self.requests[sample].min_version, *begun, 0)
            self.begin(sample, chance.randint(oldest, self.state.published))
        else:
            self.complete(sample)


def chunks_of(sample: str) -> int:
    """Return how many chunks a rollout has before its end: most have none or one, some have five."""
    return (0, 0, 1, 1, 1, 2, 2, 5)[hashlib.sha256(sample.encode()).digest()[0] % 8]
