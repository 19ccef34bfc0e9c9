"""The credit rule of agents' sessions: which turns of which path are trained on, and how much each counts.

forest of turns + its leaves + rule -> a path for each sample -> loss mask and credit of each of its tokens

The gateway applies the run's own rule when a session is sealed; `rescore` and learners apply another one to the same
turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.ids import sibling_id
from schemas.sessions import Credit, SessionSealed
from schemas.turns import TurnRecorded
from slime_events.core.config.agents import AgentSettings


class CreditRule(NamedTuple):
    """discount: gamma of `Credit.DISCOUNTED`, for each turn from the last one of a path backwards."""

    credit: Credit = Credit.ALL
    discount: float = 1.0

    @classmethod
    def of_settings(cls, agents: AgentSettings) -> "CreditRule":
        """The run's own."""
        credit = Credit(agents.agent_credit)
        return cls(credit, agents.agent_turn_discount if credit is Credit.DISCOUNTED else 1.0)

    @classmethod
    def of(cls, sealed: SessionSealed) -> "CreditRule":
        """The one that a session was sealed by."""
        return cls(sealed.credit, sealed.discount)

    def __str__(self) -> str:
        return f"{self.credit} by {self.discount:g} a turn" if self.credit is Credit.DISCOUNTED else str(self.credit)


class TurnTokens(NamedTuple):
    """A turn's place in the forest. extends: the turn before it. observed: tokens that were new in its prompt.
    generated: its own.
    """

    extends: int | None
    observed: int
    generated: int


@dataclass(frozen=True, slots=True)
class CreditedPath:
    """What a sample is made of. turns: from a root to the one that ended it. trained: those of them whose tokens it is
    trained on. weights: of each of its turns, what the advantage of its tokens is multiplied by.
    """

    turns: tuple[int, ...]
    trained: frozenset[int]
    weights: tuple[float, ...]

    def mask(self, turns: Mapping[int, TurnTokens]) -> npt.NDArray[np.int8]:
        """int8 [response], 1 = trained on. The response begins with the first turn's tokens."""
        return np.repeat(*self._parts(turns, [int(one in self.trained) for one in self.turns])).astype(np.int8)

    def credit(self, turns: Mapping[int, TurnTokens]) -> npt.NDArray[np.float32] | None:
        """float32 [response]: the weight of each token, 0 where no turn made it; None where all weights are 1."""
        if all(weight == 1.0 for weight in self.weights):
            return None
        return np.repeat(*self._parts(turns, self.weights)).astype(np.float32)

    def _parts(self, turns: Mapping[int, TurnTokens], own: Sequence[float]) -> tuple[list[float], list[int]]:
        """Values and how often each is repeated: 0 for what was observed after the first turn, then the turn's own."""
        values, counts = list[float](), list[int]()
        for number, (index, value) in enumerate(zip(self.turns, own, strict=True)):
            values += [0, value]
            counts += [turns[index].observed if number else 0, turns[index].generated]
        return values, counts


def credited_paths(
    extends: Mapping[int, int | None], leaves: Sequence[int], rule: CreditRule
) -> tuple[CreditedPath, ...]:
    """A path for each sample of a session, in the order of its samples. extends: by turn, the turn before it. leaves:
    the turns that ended a path, as `session.sealed` has them.

    A turn of several paths is trained on in the first of them alone. By `discounted` a turn counts gamma^d, d turns
    before the last one of the path that trains it: A_t = gamma^d * A, where A is what the estimator gives the token.
    With one reward R at the end of the path that is the return gamma^d * R of the turn, less its baseline
    gamma^d * mean(R) (the discount of a Markov decision process whose steps are turns; Sutton and Barto, 2018, 3.3).
    """
    taken, paths = set[int](), list[CreditedPath]()
    for leaf in leaves[:1] if rule.credit is Credit.LEAF else leaves:
        turns = path_to(extends, leaf)
        trained = frozenset(turns[-1:] if rule.credit is Credit.LAST else turns) - taken
        taken |= trained
        gamma = rule.discount if rule.credit is Credit.DISCOUNTED else 1.0
        weights = tuple(gamma**before for before in range(len(turns) - 1, -1, -1))
        paths.append(CreditedPath(turns, trained, weights))
    return tuple(paths)


def path_to(extends: Mapping[int, int | None], leaf: int) -> tuple[int, ...]:
    """The turns from a root to this one."""
    turns, before = [leaf], extends[leaf]
    while before is not None:
        turns.append(before)
        before = extends[before]
    return tuple(reversed(turns))


class SealedSessions:
    """The turns of sealed sessions, by the sample that was asked for. A fold of turn.recorded and session.sealed."""

    def __init__(self) -> None:
        self._turns: dict[str, dict[int, TurnRecorded]] = {}
        self.seals: dict[str, SessionSealed] = {}

    def apply(self, event: object) -> None:
        """Fold one event in; others are ignored."""
        match event:
            case TurnRecorded() if event.agent is not None:
                self._turns.setdefault(event.sample, {})[event.index] = event
            case SessionSealed():
                self.seals[event.sample] = event

    def turns(self, sample: str) -> dict[int, TurnRecorded]:
        """By number, those of earlier attempts among them."""
        return self._turns.get(sample, {})

    def tokens(self, sample: str) -> dict[int, TurnTokens]:
        """How its turns go on from each other."""
        return {n: TurnTokens(one.extends, one.observed.n, one.length) for n, one in self.turns(sample).items()}

    def paths(self, sample: str, rule: CreditRule | None = None) -> dict[str, CreditedPath]:
        """What a rule makes of the session of a sample, by the samples that come of it; None: as it was sealed. Empty
        where no session was sealed.
        """
        seal = self.seals.get(sample)
        if seal is None:
            return {}
        extends = {number: turn.extends for number, turn in self.turns(sample).items()}
        paths = credited_paths(extends, seal.leaves, rule or CreditRule.of(seal))
        return {sibling_id(sample, number): path for number, path in enumerate(paths)}

    def forget(self, sample: str) -> None:
        """Release a sample that is not needed any more."""
        self._turns.pop(sample, None)
        self.seals.pop(sample, None)
