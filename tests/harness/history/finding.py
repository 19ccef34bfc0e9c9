"""`Finding`: one thing in a log that no correct run could have written."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """The kinds of mistakes in a history."""

    UNREADABLE = "unreadable"
    HOLE = "hole"
    REPEATED = "repeated"
    WRONG_SUBJECT = "wrong_subject"
    NO_CAUSE = "no_cause"
    NOT_STARTED = "not_started"
    AFTER_THE_END = "after_the_end"
    WRONG_INCARNATION = "wrong_incarnation"
    WRONG_COUNT = "wrong_count"
    PROMPT_SKIPPED = "prompt_skipped"
    PROMPT_REPEATED = "prompt_repeated"
    NOT_REQUESTED = "not_requested"
    TORN = "torn"
    AFTER_COMPLETION = "after_completion"
    WRONG_SPANS = "wrong_spans"
    WRONG_VERSION = "wrong_version"
    WRONG_DIGEST = "wrong_digest"
    REWARD_EARLY = "reward_early"
    REWARD_TWICE = "reward_twice"
    VERDICT_EARLY = "verdict_early"
    VERDICT_TWICE = "verdict_twice"
    WRONG_VERDICT = "wrong_verdict"
    WRONG_EVALUATION = "wrong_evaluation"
    NOT_ACCEPTED = "not_accepted"
    TRAINED_TWICE = "trained_twice"
    NOT_TRAINED = "not_trained"
    WRONG_BATCH = "wrong_batch"
    NOT_SEALED = "not_sealed"
    BROKEN_CHAIN = "broken_chain"
    WRONG_WEIGHTS = "wrong_weights"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Finding:
    """position: of the record that shows it, 0 where it is the log as a whole."""

    kind: Kind
    position: int
    sentence: str

    def __str__(self) -> str:
        return f"{self.position}: {self.kind}: {self.sentence}"
