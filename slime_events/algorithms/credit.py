"""The credit rule of agents' sessions: which turns of each path are trained on, and their weights.

    turns + leaves + rule -> a path for each sample -> loss mask and credit of each token

The gateway applies the run's rule when a session is sealed. `rescore` and learners apply a different rule to the same
turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from schemas.ids import sibling_id
from schemas.sessions import Credit, SessionSealed
from schemas.turns import TurnRecorded
from slime_events.core.config.agents import AgentSettings


class CreditRule(NamedTuple):
    """A rule for crediting turns."""

    credit: Credit = Credit.ALL
    discount: Annotated[float, doc("gamma of `Credit.DISCOUNTED`, per turn before the last turn of a path")] = 1.0

    @classmethod
    def of_settings(cls, agents: AgentSettings) -> "CreditRule":
        """Return the rule of a run's settings."""
        credit = Credit(agents.agent_credit)
        return cls(credit, agents.agent_turn_discount if credit is Credit.DISCOUNTED else 1.0)

    @classmethod
    def of(cls, sealed: SessionSealed) -> "CreditRule":
        """Return the rule that a session was sealed with."""
        return cls(sealed.credit, sealed.discount)

    def __str__(self) -> str:
        return f"{self.credit} by {self.discount:g} a turn" if self.credit is Credit.DISCOUNTED else str(self.credit)


class TurnTokens(NamedTuple):
    """A turn's place in the forest."""

    extends: Annotated[int | None, doc("index of the turn before it; None: it begins a path")]
    observed: Annotated[int, doc("new tokens in its prompt")]
    generated: Annotated[int, doc("generated tokens")]


@dataclass(frozen=True, slots=True)
class CreditedPath:
    """The turns that make a sample."""

    turns: Annotated[tuple[int, ...], doc("turn indices from a root to the leaf")]
    trained: Annotated[frozenset[int], doc("turns whose tokens the sample is trained on")]
    weights: Annotated[tuple[float, ...], doc("factor of the advantage, for each of `turns`")]

    def mask(self, turns: Mapping[int, TurnTokens]) -> npt.NDArray[np.int8]:
        """Return int8 [response], 1: trained on. The response begins with the first turn's generated tokens."""
        return np.repeat(*self._parts(turns, [int(turn in self.trained) for turn in self.turns])).astype(np.int8)

    def credit(self, turns: Mapping[int, TurnTokens]) -> npt.NDArray[np.float32] | None:
        """Return float32 [response]: each token's weight, 0 if no turn generated it; None if all weights are 1."""
        if all(weight == 1.0 for weight in self.weights):
            return None
        return np.repeat(*self._parts(turns, self.weights)).astype(np.float32)

    def _parts(self, turns: Mapping[int, TurnTokens], own: Sequence[float]) -> tuple[list[float], list[int]]:
        """Return values and their repeats: 0 for tokens observed after the first turn, then the turn's own value."""
        values, counts = list[float](), list[int]()
        for number, (index, value) in enumerate(zip(self.turns, own, strict=True)):
            values += [0, value]
            counts += [turns[index].observed if number else 0, turns[index].generated]
        return values, counts


def credited_paths(
    extends: Mapping[int, int | None], leaves: Sequence[int], rule: CreditRule
) -> tuple[CreditedPath, ...]:
    """Return a path for each sample of a session, in the order of its samples.

    extends: turn to the turn before it. leaves: the turns that end a path, as in `session.sealed`. A turn of several
    paths is trained on only in the first of them. With `discounted`, a turn has weight gamma^d, d turns before the last
    turn of the path that trains it: A_t = gamma^d * A, where A is the estimator's advantage of the token. With a single
    reward R at the end of the path that is the return gamma^d * R of the turn, less its baseline gamma^d * mean(R) (the
    discount of a Markov decision process whose steps are turns; Sutton and Barto, 2018, 3.3).
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
    """Return the turns from a root to `leaf`."""
    turns, before = [leaf], extends[leaf]
    while before is not None:
        turns.append(before)
        before = extends[before]
    return tuple(reversed(turns))


class SealedSessions:
    """The turns of sealed sessions, by requested sample: a fold of turn.recorded and session.sealed."""

    def __init__(self) -> None:
        self._turns: dict[str, dict[int, TurnRecorded]] = {}
        self.seals: dict[str, SessionSealed] = {}

    def apply(self, event: object) -> None:
        """Fold an event in. Events of further types are ignored."""
        match event:
            case TurnRecorded() if event.agent is not None:
                self._turns.setdefault(event.sample, {})[event.index] = event
            case SessionSealed():
                self.seals[event.sample] = event

    def turns(self, sample: str) -> dict[int, TurnRecorded]:
        """Return the turns by index, including those of earlier attempts."""
        return self._turns.get(sample, {})

    def tokens(self, sample: str) -> dict[int, TurnTokens]:
        """Return the places of the turns in the forest, by index."""
        return {n: TurnTokens(turn.extends, turn.observed.n, turn.length) for n, turn in self.turns(sample).items()}

    def paths(self, sample: str, rule: CreditRule | None = None) -> dict[str, CreditedPath]:
        """Return the paths that a rule makes of a sample's session, by the ids of the resulting samples.

        rule: None for the rule that the session was sealed with. Empty if no session was sealed.
        """
        seal = self.seals.get(sample)
        if seal is None:
            return {}
        extends = {number: turn.extends for number, turn in self.turns(sample).items()}
        paths = credited_paths(extends, seal.leaves, rule or CreditRule.of(seal))
        return {sibling_id(sample, number): path for number, path in enumerate(paths)}

    def forget(self, sample: str) -> None:
        """Release a sample after its last use."""
        self._turns.pop(sample, None)
        self.seals.pop(sample, None)
