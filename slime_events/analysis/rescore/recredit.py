"""`Recredit`: decided groups as another credit rule would have made them from agents' sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from schemas.errors import InvalidValue
from schemas.ids import requested_sample
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, StopReason, WeightSpan
from schemas.sessions import SessionSealed
from schemas.turns import TurnRecorded
from slime_events.algorithms.credit import CreditedPath, CreditRule, SealedSessions
from slime_events.core.tokens.trajectory import Fetch, merge_spans
from slime_events.model.advantages import Mask
from slime_events.model.records import Entry, Group, Sample


class Part(NamedTuple):
    """Trained part of a sample."""

    name: Annotated[str, doc("id of the sample")]
    mask: Annotated[Mask, doc("trained tokens")]
    credit: Annotated[npt.NDArray[np.float32] | None, doc("factors of their advantages [response]; None: all 1")] = None

    def trains_as(self, other: Part) -> bool:
        """Return whether the same tokens are trained on, with the same weights."""
        if isinstance(self.mask, int) and isinstance(other.mask, int):
            return self.mask == other.mask and _same(self.credit, other.credit)
        return _same(_whole(self.mask), _whole(other.mask)) and _same(self.credit, other.credit)


class Recredit:
    """Applies a credit rule to groups. fetch: masks and weights of recorded samples. sessions: those of the compared
    groups; None if the rule does not change.
    """

    def __init__(self, rule: CreditRule, fetch: Fetch, sessions: SealedSessions | None) -> None:
        self._rule, self._fetch, self._sessions = rule, fetch, sessions
        self.count = 0
        """Number of sessions to which the rule was applied."""

    def before(self, group: Group) -> tuple[Part, ...]:
        """Return the trained part of its samples, as recorded."""
        return tuple([self._recorded(sample) for sample in group.samples.values()])

    def after(self, group: Group) -> tuple[Group, tuple[Part, ...]]:
        """Return the group with the samples of the rule, and the trained part of each. Drops its sessions.

        Raises InvalidValue if the rule makes a sample that was never graded.
        """
        if self._sessions is None:
            return group, self.before(group)
        samples, parts = dict[str, Sample](), list[Part]()
        for requested in dict.fromkeys(map(requested_sample, group.samples)):
            seal, turns = self._sessions.seals.get(requested), self._sessions.tokens(requested)
            if seal is None:  # not from an agent: a finished rollout from outside
                own = {name: sample for name, sample in group.samples.items() if requested_sample(name) == requested}
                samples |= own
                parts += map(self._recorded, own.values())
                continue
            self.count += 1
            for name, path in self._sessions.paths(requested, self._rule).items():
                record = group.samples.get(name)
                samples[name] = record or _new_sample(name, group, path, seal, self._sessions.turns(requested))
                mask = path.mask(turns)
                parts.append(Part(name, len(mask) if mask.all() else mask, path.credit(turns)))
            self._sessions.forget(requested)
        after = Group(group.group, group.prompt, group.order, samples, group.verdict, group.step)
        return after, tuple(parts)

    def _recorded(self, sample: Sample) -> Part:
        assert sample.completed is not None
        done = sample.completed.event
        mask = sample.length if done.loss_mask is None else np.asarray(self._fetch(done.loss_mask), dtype=np.int8)
        return Part(sample.sample, mask, None if done.credit is None else self._fetch(done.credit))


def _new_sample(
    name: str, group: Group, path: CreditedPath, seal: SessionSealed, turns: Mapping[int, TurnRecorded]
) -> Sample:
    """Return the sample of a path that was not one, because its session was sealed by `leaf`. Its text has only
    generated tokens.
    """
    leaf = path.turns[-1]
    reward = seal.rewards.get(leaf, seal.reward)
    if reward is None:
        raise InvalidValue(
            f"turn {leaf} of session {seal.sample}.{seal.attempt} ended a path that was not a sample (agent-credit "
            "leaf) and has no reward of its harness. It was never graded, so it cannot be credited"
        )
    spans, length, text = tuple[WeightSpan, ...](), 0, list[str]()
    for number, turn in enumerate(turns[index] for index in path.turns):
        length += turn.observed.n if number else 0
        spans = merge_spans(
            spans, tuple(WeightSpan(span.start + length, span.end + length, span.version) for span in turn.spans)
        )
        length += turn.length
        text.append(turn.text)
    done = RolloutCompleted(
        sample=name,
        group=group.group,
        attempt=seal.attempt,
        start=0,
        length=length,
        prompt_length=turns[path.turns[0]].observed.n,
        stop=turns[leaf].stop or StopReason.STOP,
        text="".join(text),
        spans=spans,
        digest="",
        engine="",
        rollout=seal.sample,
    )
    graded = RewardAssigned(sample=name, group=group.group, value=reward, grader="", grader_digest="")
    sample = Sample(name, group.group, length=length, spans=spans)
    sample.completed = Entry(done, 0, 0, "", "")
    sample.reward = Entry(graded, 0, 0, "", "")
    return sample


def _whole(mask: Mask) -> npt.NDArray[np.int8]:
    return np.ones(mask, np.int8) if isinstance(mask, int) else mask


def _same(first: npt.NDArray[np.float32 | np.int8] | None, other: npt.NDArray[np.float32 | np.int8] | None) -> bool:
    if first is None or other is None:
        return first is other
    return np.array_equal(first, other)
