"""Chunks: when those of a run were appended, and how many a rollout appends under other settings.

A rollout is one request to its engine, which sends new tokens in messages. The worker joins messages into chunks. The
engine waits for no append, and it loads new weights in the middle of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import ceil
from typing import Annotated, NamedTuple

from schemas.doc import doc
from schemas.rollouts import RolloutProgressed
from slime_events.analysis.what_if.timed_rollouts import NANO, TimedRollout
from slime_events.core.config.engine import message_tokens
from storage.log import Recorded


class ChunkSize(NamedTuple):
    """When a chunk is appended: after this many tokens, or seconds."""

    tokens: Annotated[int, doc("--chunk-tokens")]
    seconds: Annotated[float, doc("--chunk-seconds")]

    def count(self, length: int, token: float = 0.0) -> int:
        """Return the chunks that are appended before the end of a rollout of this length [tokens].

        token: time of a token [s]. A chunk is appended with a whole message, of which the first has one token.
        """
        message, due = message_tokens(self.tokens), float(self.tokens)
        if self.by_time(token):
            due = self.seconds / token
        first = 1 + message * max(0, ceil((due - 1) / message))
        each = message * ceil(due / message)
        return 0 if length <= first else 1 + (length - first - 1) // each

    def by_time(self, token: float) -> bool:
        """Return whether chunks are appended because of their seconds. token: time of a token [s]."""
        return self.tokens * token > self.seconds


class Part(NamedTuple):
    """A part of a rollout: from its begin or a chunk to the next chunk or its end."""

    rollout: Annotated[int, doc("place of the rollout among those of its engine")]
    begin: Annotated[float, doc("[s, UTC]")]
    end: Annotated[float, doc("[s, UTC]")]
    tokens: Annotated[int, doc("tokens generated in it")]
    is_first: bool


class ChunkTimes:
    """The chunks of a run's rollouts that have at least `tokens` tokens. Call `apply` with all events of the run.

    Smaller ones are appended because seconds have passed. Slow rollouts have them, but they do not make a rollout slow.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._chunks: dict[str, list[tuple[int, float]]] = {}
        self._in_turns = set[str]()

    def apply(self, recorded: Recorded) -> None:
        """Note the event if it is a chunk."""
        event = recorded.envelope.event
        if isinstance(event, RolloutProgressed) and event.tokens.n >= self._tokens:
            chunk = event.start + event.tokens.n, recorded.envelope.at * NANO
            self._chunks.setdefault(event.sample, []).append(chunk)
            if event.turn is not None:
                self._in_turns.add(event.sample)

    def reached(self, sample: str) -> list[tuple[int, float]]:
        """Return the tokens of a sample, or of its turn, that are appended with each chunk, and when [s, UTC]."""
        return self._chunks.get(sample, [])

    def parts(self, rollout: TimedRollout, place: int) -> Iterator[Part]:
        """Yield the parts of a rollout. One in turns is one part: tools run in between."""
        chunks = [] if rollout.sample in self._in_turns else self.reached(rollout.sample)
        points = [(0, rollout.begin), *chunks, (rollout.tokens, rollout.end)]
        for number, ((before, begin), (reached, end)) in enumerate(pairwise(points)):
            yield Part(place, begin, end, reached - before, number == 0)
