"""`Recredit`: decided groups as another credit rule would have made them of their agents' sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.errors import InvalidValue
from schemas.ids import requested_sample
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, StopReason, WeightSpan
from schemas.sessions import SessionSealed
from schemas.turns import TurnRecorded
from slime_events.analysis.model.advantages import Mask
from slime_events.analysis.model.records import Entry, Group, Sample
from slime_events.core.credit import CreditedPath, CreditRule, SealedSessions
from slime_events.core.trajectory import Fetch, merge_spans


class Part(NamedTuple):
    """What is trained on of a sample. mask: trained tokens; credit: what their advantages are multiplied by [response],
    None is 1.
    """

    name: str
    mask: Mask
    credit: npt.NDArray[np.float32] | None = None

    def trains_as(self, other: Part) -> bool:
        """Whether the same tokens are trained on, and count as much."""
        if isinstance(self.mask, int) and isinstance(other.mask, int):
            return self.mask == other.mask and _same(self.credit, other.credit)
        return _same(_whole(self.mask), _whole(other.mask)) and _same(self.credit, other.credit)


class Recredit:
    """fetch: masks and credit of recorded samples. sessions: with those of the groups that are asked about; None where
    the rule is not changed.
    """

    def __init__(self, rule: CreditRule, fetch: Fetch, sessions: SealedSessions | None) -> None:
        self._rule, self._fetch, self._sessions = rule, fetch, sessions
        self.count = 0
        """Sessions that the rule was applied to."""

    def before(self, group: Group) -> tuple[Part, ...]:
        """Its samples as they were trained on."""
        return tuple([self._recorded(sample) for sample in group.samples.values()])

    def after(self, group: Group) -> tuple[Group, tuple[Part, ...]]:
        """The group with the samples of the rule, and what is trained on of each. Releases its sessions.

        Raises InvalidValue where the rule makes a sample that nobody graded.
        """
        if self._sessions is None:
            return group, self.before(group)
        samples, parts = dict[str, Sample](), list[Part]()
        for asked in dict.fromkeys(map(requested_sample, group.samples)):
            seal, turns = self._sessions.seals.get(asked), self._sessions.tokens(asked)
            if seal is None:  # made otherwise: a finished rollout from outside
                own = {name: one for name, one in group.samples.items() if requested_sample(name) == asked}
                samples |= own
                parts += map(self._recorded, own.values())
                continue
            self.count += 1
            for name, path in self._sessions.paths(asked, self._rule).items():
                record = group.samples.get(name)
                samples[name] = record or _made(name, group, path, seal, self._sessions.turns(asked))
                mask = path.mask(turns)
                parts.append(Part(name, len(mask) if mask.all() else mask, path.credit(turns)))
            self._sessions.forget(asked)
        after = Group(group.group, group.prompt, group.order, samples, group.verdict, group.step)
        return after, tuple(parts)

    def _recorded(self, sample: Sample) -> Part:
        assert sample.completed is not None
        done = sample.completed.event
        mask = sample.length if done.loss_mask is None else np.asarray(self._fetch(done.loss_mask), dtype=np.int8)
        return Part(sample.sample, mask, None if done.credit is None else self._fetch(done.credit))


def _made(
    name: str, group: Group, path: CreditedPath, seal: SessionSealed, turns: Mapping[int, TurnRecorded]
) -> Sample:
    """A sample of a path that was none: its session was sealed by `leaf`. Its text has what turns generated alone."""
    leaf = path.turns[-1]
    reward = seal.rewards.get(leaf, seal.reward)
    if reward is None:
        raise InvalidValue(
            f"turn {leaf} of session {seal.sample}.{seal.attempt} ended a path that was no sample (agent-credit leaf) "
            "and has no reward of its harness: nobody has graded it, so it cannot be credited"
        )
    spans, length, text = tuple[WeightSpan, ...](), 0, list[str]()
    for number, turn in enumerate(turns[index] for index in path.turns):
        length += turn.observed.n if number else 0
        spans = merge_spans(
            spans, tuple(WeightSpan(one.start + length, one.end + length, one.version) for one in turn.spans)
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


def _same(one: npt.NDArray[np.float32 | np.int8] | None, other: npt.NDArray[np.float32 | np.int8] | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
