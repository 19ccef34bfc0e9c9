"""Checks of agents' sessions in a log: functions over its events that use none of the product's own checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.event import Event, Purpose
from schemas.ids import requested_sample, sample_id, session_name, sibling_id, turn_group_id
from schemas.rollouts import RolloutCompleted, RolloutRequested
from schemas.sessions import SessionOpened, SessionSealed
from schemas.turns import TurnBegun, TurnRecorded
from slime_events.core.tokens.trajectory import Fetch, content_digest
from storage.log import Recorded
from tests.harness.agent_kills.told import Told
from tests.harness.chaos.measures import trained

Decode = Callable[[list[int]], str]
"""Converts token ids to the text that an agent sees."""


@dataclass(slots=True)
class Facts:
    """A run's log, arranged for these checks. trained: samples of committed steps. turns: by sample and index."""

    fetch: Fetch
    trained: list[str]
    opened: list[SessionOpened] = field(default_factory=list)
    sealed: dict[str, SessionSealed] = field(default_factory=dict)
    turns: dict[tuple[str, int], TurnRecorded] = field(default_factory=dict)
    requested: dict[str, RolloutRequested] = field(default_factory=dict)
    completed: dict[str, RolloutCompleted] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Sequence[Event], fetch: Fetch) -> Facts:
        """Return the facts of a run that is over."""
        facts = cls(fetch, trained(events))
        for event in events:
            match event:
                case SessionOpened():
                    facts.opened.append(event)
                case SessionSealed():
                    facts.sealed[session_name(event.sample, event.attempt)] = event
                case TurnRecorded():
                    facts.turns[event.sample, event.index] = event
                case RolloutRequested():
                    facts.requested[event.sample] = event
                case RolloutCompleted():
                    facts.completed[event.sample] = event
        return facts

    @property
    def tokens(self) -> int:
        """Tokens of the generations that turns asked for."""
        calls = (name for name, request in self.requested.items() if request.purpose is Purpose.CALL)
        return sum(self.completed[name].length for name in calls if name in self.completed)

    def path(self, sample: str, leaf: int | None) -> Iterator[TurnRecorded]:
        """Yield the turns from one back to its root."""
        while leaf is not None:
            yield self.turns[sample, leaf]
            leaf = self.turns[sample, leaf].extends

    def upto(self, sample: str, turn: int | None) -> np.ndarray:
        """Return the tokens of a path up to the end of a turn; none for None."""
        path = reversed(list(self.path(sample, turn)))
        parts = [self.fetch(part) for taken in path for part in (taken.observed, taken.tokens)]
        return np.concatenate([np.empty(0, np.int32), *parts])


def not_as_told(answers: Iterable[Told], facts: Facts, decode: Decode) -> list[str]:
    """Return the answers that an agent received whole, and whose text is not that of a recorded turn of its session."""
    samples = {session_name(session.sample, session.attempt): session.sample for session in facts.opened}
    return [
        f"{answer.session}, turn {answer.turn}: {answer.text!r}"
        for answer in answers
        if (turn := facts.turns.get((samples.get(answer.session, ""), answer.turn))) is None
        or not _is_told(answer, decode(facts.fetch(turn.tokens).tolist()))
    ]


def _is_told(answer: Told, text: str) -> bool:
    if answer.calls:  # the parser takes them out of the text
        return text.startswith(answer.text.strip()) and all(name in text for name in answer.calls)
    return answer.text == text


def not_as_made(facts: Facts) -> list[str]:
    """Return the turns whose prompt, tokens or log-probs are not those of the generation behind them."""
    return [f"turn {index} of {sample}" for (sample, index), turn in facts.turns.items() if not _is_made(turn, facts)]


def _is_made(turn: TurnRecorded, facts: Facts) -> bool:
    call = sample_id(turn_group_id(turn.sample, turn.index), 0)
    request, generated = facts.requested.get(call), facts.completed.get(call)
    if (
        request is None
        or generated is None
        or content_digest(*map(facts.fetch, (turn.tokens, turn.log_probs))) != generated.digest
    ):
        return False
    actual, after = facts.fetch(request.prompt), request.after
    if after is not None:
        before = facts.upto(after.sample, after.turn)
        if len(before) != after.length:
            return False
        actual = np.concatenate([before, actual])
    prompt = np.concatenate([facts.upto(turn.sample, turn.extends), facts.fetch(turn.observed)])
    return generated.prompt_length == len(prompt) and np.array_equal(prompt, actual)


def trained_amiss(facts: Facts) -> list[str]:
    """Return faults of trained tokens: not made by a turn of a session that ended well, or trained twice."""
    times, faults = Counter[tuple[str, int, int]](), list[str]()
    for sample in facts.trained:
        for token in _trained_tokens(sample, facts):
            if token is None:
                faults.append(f"{sample} trains on what no turn made")
                break
            times[token] += 1
    twice = dict.fromkeys(f"turn {index} of {sample} twice" for (sample, index, _), n in times.items() if n > 1)
    return [*faults, *twice]


def _trained_tokens(sample: str, facts: Facts) -> Iterator[tuple[str, int, int] | None]:
    """Yield (sample of the session, turn, place in it) of each trained token; None for a token without a turn."""
    done, requested = facts.completed[sample], requested_sample(sample)
    seal = facts.sealed.get(session_name(requested, done.attempt))
    siblings = [sibling_id(requested, number) for number in range(len(seal.leaves))] if seal else []
    if seal is None or seal.exit_code or sample not in siblings:
        yield None
        return
    by_place: dict[int, tuple[str, int, int, int]] = {}
    at = -done.prompt_length
    for turn in reversed(list(facts.path(requested, seal.leaves[siblings.index(sample)]))):
        at += turn.observed.n
        for place, token in enumerate(facts.fetch(turn.tokens).tolist()):
            by_place[at + place] = (requested, turn.index, place, token)
        at += turn.length
    tokens = facts.fetch(done.tokens).tolist()
    mask = [1] * done.length if done.loss_mask is None else facts.fetch(done.loss_mask).tolist()
    for place in range(done.length):
        if mask[place]:
            source = by_place.get(place)
            yield source[:3] if source and source[3] == tokens[place] else None


def open_turns(log: Iterable[Recorded], at: int) -> int:
    """Count the turns that were begun and not recorded at a moment (UTC ns), by events' stamps, in open sessions."""
    begun = set[tuple[str, int]]()
    for recorded in log:
        event = recorded.envelope.event
        if recorded.envelope.at > at:
            continue
        if isinstance(event, TurnBegun) and event.nonce:
            begun.add((event.sample, event.index))
        elif isinstance(event, TurnRecorded):
            begun.discard((event.sample, event.index))
        elif isinstance(event, SessionSealed):
            begun = {turn for turn in begun if turn[0] != event.sample}
    return len(begun)
