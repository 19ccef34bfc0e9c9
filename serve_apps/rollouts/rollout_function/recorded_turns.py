"""`MadeTurns`: generations of a rollout function, looked up by the tokens of the samples that it returns."""

from collections import defaultdict
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from serve_apps.engines.engine import Tokens
from serve_apps.rollouts.generate.journal import EndedTurn


class MadeTurn(NamedTuple):
    """A generation, its prompt (int32) and the call that made it."""

    prompt: Tokens
    ended: EndedTurn
    call: str


class MadeTurns:
    """Generations by prompt. Turns older than `kept_steps` steps are forgotten, since no sample may be so old."""

    def __init__(self, kept_steps: int) -> None:
        self._kept_steps = kept_steps
        self._by_prompt: dict[bytes, list[tuple[int, MadeTurn]]] = defaultdict(list)

    def add(self, turn: MadeTurn, step: int) -> None:
        """Add a generation of a step."""
        self._by_prompt[turn.prompt.tobytes()].append((step, turn))

    def forget_before(self, step: int) -> None:
        """Forget turns that are too old for a step."""
        kept = {
            prompt: [(made_in, turn) for made_in, turn in turns if made_in >= step - self._kept_steps]
            for prompt, turns in self._by_prompt.items()
        }
        self._by_prompt = defaultdict(list, {prompt: turns for prompt, turns in kept.items() if turns})

    def of(self, tokens: Tokens) -> list[MadeTurn]:
        """Return the turns that these tokens contain, in order; for each prompt the longest match."""
        matches, lengths = list[MadeTurn](), sorted({len(prompt) // tokens.itemsize for prompt in self._by_prompt})
        for length in lengths:
            if turns := self._by_prompt.get(tokens[:length].tobytes()):
                share, turn = max(((_shared(turn, tokens), turn) for _, turn in turns), key=itemgetter(0))
                matches += [turn] if share else []
        return matches


def _shared(turn: MadeTurn, tokens: Tokens) -> int:
    """Return how many of the turn's tokens follow its prompt in `tokens`."""
    there = tokens[len(turn.prompt) : len(turn.prompt) + len(turn.ended.tokens)]
    differ = np.nonzero(there != turn.ended.tokens[: len(there)])[0]
    return int(differ[0]) if len(differ) else len(there)
