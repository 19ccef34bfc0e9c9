"""`Miniature`: the conductor's real decisions over a log in memory, with groups that end when the test says so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from schemas.arrays import pack_tokens
from schemas.batches import BatchSealed
from schemas.codec import decode, encode
from schemas.envelope import enclose
from schemas.event import Event
from schemas.groups import GroupRejected
from schemas.prompts import Source
from schemas.rollouts import (
    RolloutRequested,
    Sampling,
    WeightSpan,
)
from slime_events.core.state.apply import apply
from slime_events.core.state.group import GroupPhase, GroupState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.decide import decide, prompts_to_draw
from slime_events.loop.conductor.draw import requests_for
from slime_events.loop.conductor.plan import Plan
from slime_events.plugins.filters.decide import run_filter
from slime_events.plugins.sample import Sample
from storage.log import Recorded
from tests import made

Filter = Callable[..., object]


class Miniature:
    """A run of one step at staleness 0. Groups are numbered as they are drawn; `rewards[g]` are those of group g."""

    def __init__(
        self,
        groups: int,
        samples: int,
        draw: int,
        rewards: Sequence[Sequence[float]],
        keep: Filter,
        *,
        partial_rollout: bool = False,
    ) -> None:
        self.plan = Plan(
            steps=1,
            groups=groups,
            samples=samples,
            sampling=Sampling(max_new_tokens=8),
            draw=draw,
            partial_rollout=partial_rollout,
        )
        self.rewards, self.keep = rewards, keep
        self.log: list[Recorded] = []
        self.state = RunState(run="mini")
        self.draws: list[int] = []
        self.say(made.started())
        self.say(made.published())
        self.settle()

    def say(self, event: Event) -> None:
        """Append one event and fold it in."""
        envelope = enclose("mini", event, at=len(self.log), producer="test")
        self.log.append(Recorded(len(self.log) + 1, envelope.subject, envelope, encode(envelope)))
        apply(self.state, self.log[-1])

    def folded(self) -> RunState:
        """The state that a new process would come to: nothing but the bytes of the log."""
        state = RunState(run="mini")
        for stored in self.log:
            apply(state, Recorded(stored.position, stored.subject, decode(stored.data), stored.data))
        return state

    def settle(self) -> None:
        """Let the conductor speak until it has nothing to say."""
        while events := [*decide(self.state, self.plan, self._judge, lambda raw, _: list(raw)), *self._draw()]:
            for event in events:
                self.say(event)

    def begin(self, group: int) -> None:
        """A first chunk of each sample of a group: it is being generated."""
        for event in self._requests(group):
            self.say(
                made.progressed(
                    event.sample, [5], log_probs=pack_tokens([0]), spans=(WeightSpan(0, 1, 0),), engine="test"
                )
            )

    def end(self, group: int) -> None:
        """All samples of a group end and are graded; the conductor has not looked yet."""
        for event, reward in zip(self._requests(group), self.rewards[group], strict=True):
            self.say(
                made.completed(
                    event.sample,
                    group=event.group,
                    length=1,
                    spans=(WeightSpan(0, 1, 0),),
                    digest=hashlib.sha256(event.sample.encode()).hexdigest(),
                    engine="test",
                )
            )
            self.say(made.assigned(event.sample, group=event.group, value=reward, grader="test"))

    def rest(self, group: int) -> None:
        """Suspend the samples of a group, each with one token, as engines do when the sealed batch suspends."""
        for event in self._requests(group):
            self.say(made.suspended(event.sample, 1, engine="test"))

    def suspends(self) -> bool:
        """Whether the step is sealed, and what is under way rests until the next."""
        return any(isinstance(event, BatchSealed) and event.suspends for event in self._events())

    def sealed(self) -> list[int] | None:
        """The groups of the step, by number; None while it is not sealed."""
        batches = [event for event in self._events() if isinstance(event, BatchSealed)]
        return [int(group[1:]) for group in batches[0].groups] if batches else None

    def drop_reasons(self) -> list[str]:
        """Return the reason of each rejected group, in order."""
        return [event.reason for event in self._events() if isinstance(event, GroupRejected)]

    def dropped(self) -> list[int]:
        """The rejected groups, in order."""
        return [int(event.group[1:]) for event in self._events() if isinstance(event, GroupRejected)]

    def carried_over(self) -> list[GroupState]:
        """Groups that were asked for and are there for the next step: running, or accepted and waiting."""
        return self.state.in_phase(GroupPhase.REQUESTED) + self.state.in_phase(GroupPhase.ACCEPTED)

    def _events(self) -> list[Event]:
        return [recorded.envelope.event for recorded in self.log]

    def _requests(self, group: int) -> list[RolloutRequested]:
        return [e for e in self._events() if isinstance(e, RolloutRequested) and e.group == f"g{group}"]

    def _judge(self, group: GroupState):
        # The case's own numbers: the log's are floats, and slime names a drop after the grader's number (0, not 0.0).
        number = int(group.group[1:])
        members = [Sample(group_index=number, index=i, reward=r) for i, r in enumerate(self.rewards[number])]
        return run_filter(self.keep, None, members)

    def _draw(self) -> list[Event]:
        count = prompts_to_draw(self.state, self.plan)
        if not count:
            return []
        first = sum(self.draws)
        self.draws.append(count)
        events: list[Event] = []
        for number in range(first, first + count):
            prompt = made.submitted(f"g{number}", source=Source(path="mini", offset=number))
            events += [prompt, *requests_for(prompt.group, prompt.tokens, self.plan, version=self.state.published)]
        return events
