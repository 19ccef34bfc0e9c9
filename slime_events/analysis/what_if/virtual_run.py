"""`VirtualRun`: a run in virtual time. The conductor's functions decide; engines, graders and trainer are models."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Annotated, NamedTuple

from msgspec.structs import replace

from schemas.arrays import Array
from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.errors import InvalidValue
from schemas.event import Event, Purpose
from schemas.ids import TRAIN, evaluation_group_id, group_id, order_in_group
from schemas.prompts import PromptSubmitted, Source
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutRequested, StopReason, Timings
from schemas.runs import RunStarted
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.what_if.answers import AnsweredGroup
from slime_events.analysis.what_if.chunks import ChunkSize
from slime_events.analysis.what_if.clock import Clock
from slime_events.analysis.what_if.measurements import Measurements
from slime_events.analysis.what_if.policy import Policy
from slime_events.analysis.what_if.virtual_engine import VirtualEngine, Work
from slime_events.analysis.what_if.virtual_graders import VirtualGraders
from slime_events.analysis.what_if.virtual_log import VirtualLog
from slime_events.analysis.what_if.virtual_trainer import VirtualTrainer
from slime_events.core.state.group import GroupState
from slime_events.loop.conductor.decide import decide, evals_due, prompts_to_draw, with_requests
from slime_events.loop.conductor.draw import requests_for
from slime_events.model import Run
from slime_events.plugins.filters.decide import FilterDecision, keep
from storage.log import Recorded

MOST_DRAWN = 50
"""Most prompts that are drawn for each group that is needed, after which the filter drops too many."""
CONDUCTOR, TRAINER, GRADER = "conductor", "trainer", "grader"


class Simulated(NamedTuple):
    """A simulated run."""

    run: Annotated[Run, doc("its records, as those of a recorded run")]
    events: Annotated[list[Recorded], doc("its events")]
    most_running: Annotated[int, doc("most rollouts at once on one engine")]
    step_tokens: Annotated[tuple[int, int], doc("fewest and most tokens of a step")]
    repeated: Annotated[float, doc("share of the training groups whose answers were drawn at random")]


def simulate(measured: Measurements, policy: Policy, seed: int) -> Simulated:
    """Simulate a run with a policy. Raises InvalidValue if it cannot end under that policy."""
    return VirtualRun(measured, policy, seed).finish()


class VirtualRun:
    """One simulated run, from the publication of version 0 to its last commit."""

    def __init__(self, measured: Measurements, policy: Policy, seed: int) -> None:
        self._measured, self._clock = measured, Clock()
        self._plan = policy.plan(measured.settings, measured.steps)
        self._log = VirtualLog("what-if", self._clock)
        self._answers, self._groups = measured.answers(seed), dict[str, AnsweredGroup]()
        delays, clock = measured.delays, self._clock
        self._graders = VirtualGraders(clock, max(1, measured.graders_of(policy.rm_workers)), delays.to_grade)
        self._trainer = VirtualTrainer(clock, self._plan, measured.trainer, delays, self._commit, self._train)
        chunk = ChunkSize(policy.chunk_tokens, measured.settings.engine.chunk_s)
        self._engines = [
            VirtualEngine(
                f"engine-{index}",
                clock,
                measured.engines,
                delays,
                chunk,
                self._complete,
                self._activate,
            )
            for index in range(policy.rollout_num_engines)
        ]
        self._room = measured.settings.engine.sglang_server_concurrency
        self._queue: deque[Work] = deque()
        self._lengths: dict[str, int] = {}
        self._drawn = 0

    def finish(self) -> Simulated:
        """Simulate the run to its end."""
        self._log.append(RunStarted(settings={}, code_version=""), CONDUCTOR)
        self._log.append(WeightsPublished(version=0, parent=None, url="", digest="v0", bytes=0), TRAINER)
        for engine in self._engines:
            self._log.append(WeightsActivated(version=0, engine=engine.name, digest="v0", seconds=0.0), engine.name)
        self._decide()
        state, steps = self._log.state, self._plan.steps
        if not self._clock.run(lambda: state.version >= steps):
            raise InvalidValue(f"under this policy nothing happens any more after step {state.version - 1}")
        tokens = self._trainer.tokens
        return Simulated(
            run=self._log.run,
            events=self._log.events,
            most_running=max(engine.most_running for engine in self._engines),
            step_tokens=(min(tokens), max(tokens)),
            repeated=self._answers.repeated / self._answers.taken,
        )

    def _decide(self) -> None:
        """Append the conductor's decisions until there are none."""
        state, algorithm = self._log.state, self._measured.settings.algorithm
        while True:
            events = decide(state, self._plan, self._judge, partial(normalize_rewards, settings=algorithm))
            events += self._draw() + self._evaluate()
            if not events:
                return
            for event in events:
                self._log.append(event, CONDUCTOR)
                if isinstance(event, RolloutRequested):
                    self._request(event)
                elif isinstance(event, BatchSealed):
                    tokens = self._measured.trainer.tokens(event, self._lengths)
                    self._trainer.train(event, tokens, self._generates)

    def _judge(self, group: GroupState) -> FilterDecision:
        return replace(keep(group), keep=self._groups[group.group].kept)

    def _draw(self) -> list[Event]:
        drawn = []
        for _ in range(prompts_to_draw(self._log.state, self._plan)):
            group = group_id(TRAIN, 0, self._drawn)
            answered = self._answers.take(self._log.state.published)
            drawn.append(self._prompt(group, answered, Source(path=TRAIN, row=self._drawn, offset=self._drawn)))
            self._drawn += 1
        if self._drawn > MOST_DRAWN * self._plan.groups * self._plan.steps:
            raise InvalidValue(f"the filter drops too many groups: {self._drawn:,} prompts do not fill the steps")
        return with_requests(drawn, self._log.state, self._plan)

    def _evaluate(self) -> list[Event]:
        events: list[Event] = []
        for name, version in evals_due(self._log.state, self._plan):
            for row, answered in enumerate(self._answers.evaluation(name, version)):
                group = evaluation_group_id(name, version, row)
                prompt = self._prompt(group, answered, Source(path=name, row=row, offset=row))
                prompt = replace(prompt, purpose=Purpose.EVAL, dataset=name, version=version)
                requests = requests_for(group, prompt.tokens, self._plan, evaluation=name, version=version)
                events += [prompt, *requests[: len(answered.answers)]]
        return events

    def _prompt(self, group: str, answered: AnsweredGroup, source: Source) -> PromptSubmitted:
        self._groups[group] = answered
        return PromptSubmitted(group=group, text="", tokens=Array(dtype="int32", n=answered.prompt), source=source)

    def _request(self, request: RolloutRequested) -> None:
        answered = self._groups[request.group]
        answer = answered.answers[order_in_group(request.sample)[0]]
        self._lengths[request.sample] = answered.prompt + answer.length
        self._queue.append(Work(request, answer, self._clock.now))
        self._hand_out()

    def _hand_out(self) -> None:
        """Give waiting rollouts to the engines that have the fewest."""
        while self._queue:
            engine = min(self._engines, key=lambda engine: engine.taken)
            if engine.taken >= self._room:
                return
            engine.take(self._queue.popleft())

    def _generates(self) -> bool:
        return any(engine.running for engine in self._engines)

    def _train(self, training: bool) -> None:
        for engine in self._engines:
            engine.train(training=training)

    def _activate(self, activated: WeightsActivated) -> None:
        self._log.append(activated, activated.engine)

    def _complete(self, work: Work) -> None:
        request, answer, now = work.request, work.answer, self._clock.now
        completed = RolloutCompleted(
            sample=request.sample,
            group=request.group,
            attempt=0,
            start=0,
            length=answer.length,
            prompt_length=request.prompt.n,
            stop=StopReason.STOP,
            text="",
            spans=work.spans,
            digest=request.sample,
            engine=work.engine,
            timings=Timings(queued=work.begin - work.requested, generating=now - work.begin),
        )
        self._log.append(completed, work.engine)
        if answer.grading is None:
            self._assign(work, 0.0, work.engine)
        else:
            self._graders.grade(answer.grading, partial(self._assign, work, answer.grading, GRADER))
        self._hand_out()

    def _assign(self, work: Work, seconds: float, producer: str) -> None:
        request = work.request
        reward = RewardAssigned(
            sample=request.sample,
            group=request.group,
            value=work.answer.reward,
            grader="",
            grader_digest="",
            seconds=seconds,
        )
        self._log.append(reward, producer)
        group = self._log.state.groups.get(request.group)
        if group is None or all(sample.reward is not None for sample in group.samples.values()):
            self._clock.after(self._measured.delays.to_seal, self._decide)

    def _commit(self, events: Sequence[Event]) -> None:
        for event in events:
            self._log.append(event, TRAINER)
            if isinstance(event, WeightsPublished):
                for engine in self._engines:
                    engine.publish(event.version)
        self._clock.after(self._measured.delays.to_request, self._decide)
