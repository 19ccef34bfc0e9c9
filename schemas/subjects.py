"""Subjects: `slime.<run>.<noun>.<verb>.<entity>`, and the filters over them."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Self

from schemas.errors import InvalidSubject
from schemas.event import Event, type_of
from schemas.registry import ANNOUNCED, BY_TYPE, NOUNS

_TOKEN = re.compile(r"[A-Za-z0-9_\-]+")


@lru_cache(maxsize=4096)
def check_token(token: str, what: str) -> str:
    """Return the token. Raises InvalidSubject unless it has only letters, digits, `-` and `_`."""
    if not is_token(token):
        raise InvalidSubject(f"{what} {token!r} cannot be part of a subject: use letters, digits, '-' and '_' only")
    return token


def is_token(text: str) -> bool:
    """Return whether a text has only the characters of a subject token."""
    return _TOKEN.fullmatch(text) is not None


def subject_of(run: str, event: Event) -> str:
    """Return the subject of an event, such as `slime.demo.rollout.completed.train-0-7-s3`."""
    return f"slime.{check_token(run, 'run name')}.{type_of(event)}.{check_token(event.entity(), 'entity')}"


def every_event(run: str) -> str:
    """Return the filter of all events of a run."""
    return f"slime.{run}.>"


def pattern(run: str, *tokens: str) -> str:
    """Return a subject or filter of a run; `run` may be `*`, for every run."""
    return ".".join(("slime", run, *tokens))


def of_type(run: str, event_type: str, entity: str = "*") -> str:
    """Return the filter of all events of one type, such as `rollout.requested`; with an entity, their subject."""
    return f"slime.{run}.{event_type}.{entity}"


def about(run: str, noun: str, entity: str) -> str:
    """Return the filter of all events of one noun about one entity: the usual fence."""
    return f"slime.{run}.{noun}.*.{entity}"


@lru_cache(maxsize=4096)  # each append calls it several times per fence
def any_verb(subject: str) -> str:
    """Return `slime.run.noun.verb.entity` with `*` as verb, as `about` does; any other subject unchanged."""
    tokens = subject.split(".")
    return ".".join((*tokens[:3], "*", tokens[4])) if len(tokens) == 5 else subject


def everything_about(run: str, entity: str) -> str:
    """Return the filter of all events about one entity: the fence of a rollout with turns."""
    return f"slime.{run}.*.*.{entity}"


def named_by(pattern: str) -> list[str] | None:
    """Return all subjects that a filter can match, or None if it does not name the entity."""
    tokens = pattern.split(".")
    if len(tokens) != 5 or tokens[4] in ("*", ">"):
        return None
    slime, run, *_, entity = tokens
    subjects = (f"{slime}.{run}.{event_type}.{entity}" for event_type in BY_TYPE)
    return [subject for subject in subjects if matches(pattern, subject)]


def stream_subjects(run: str) -> list[str]:
    """Return the subjects that the run's stream stores; the inbox and replies are not stored."""
    check_token(run, "run name")
    return [f"slime.{run}.{noun}.>" for noun in NOUNS]


_STREAM = "SLIME_"


def stream_name(run: str) -> str:
    """Return the name of a run's JetStream stream."""
    return f"{_STREAM}{check_token(run, 'run name')}"


def run_of_stream(stream: str) -> str:
    """Return the run whose stream has this name."""
    return stream.removeprefix(_STREAM)


def past_stream_name(run: str) -> str:
    """Return the name of the stream that describes events removed from the run's stream. No run's name has a `+`."""
    return f"{stream_name(run)}+past"


def entrance(run: str, door: str) -> str:
    """Return the subject prefix on which a stream with removable events accepts them; stored subjects lack it."""
    return f"slime.{check_token(run, 'run name')}.at.{door}."


def past_entrance(run: str) -> str:
    """Return the subject prefix on which the stream of removed events accepts records."""
    return f"slime.{check_token(run, 'run name')}.past."


def inbox(run: str, what: str = "prompts") -> str:
    """Return the subject to which producers send requests; not stored."""
    return f"slime.{check_token(run, 'run name')}.inbox.{what}"


def fates(run: str, source: str) -> str:
    """Return the subject on which a source of prompts receives their fates; not stored."""
    return f"slime.{check_token(run, 'run name')}.fates.{check_token(source, 'source')}"


def notifications(run: str, listener: str) -> str:
    """Return the subject prefix on which a listener is notified of stored events; not stored itself."""
    return f"slime.{check_token(run, 'run name')}.told.{check_token(listener, 'name')}"


def early_notifications(run: str, listener: str) -> str:
    """Return the subject prefix on which a listener is notified of events before they are stored."""
    return f"slime.{check_token(run, 'run name')}.early.{check_token(listener, 'name')}"


def announcement(run: str, subject: str) -> str:
    """Return the subject on which a stored event of `subject` is announced; not stored itself."""
    return f"{_announcements(run)}.{subject.removeprefix(pattern(run, ''))}"


def announced_inbox(run: str, subject: str) -> str | None:
    """Return the subject prefix of the announcements under a filter, or None if a matching type is not announced.

    The prefix lacks the entity, so it may cover more events than the filter.
    """
    tokens = subject.split(".")
    if len(tokens) != 5:
        return None
    types = [event_type for event_type in BY_TYPE if matches(f"{tokens[2]}.{tokens[3]}", event_type)]
    return f"{_announcements(run)}.{tokens[2]}.{tokens[3]}" if types and ANNOUNCED.issuperset(types) else None


def _announcements(run: str) -> str:
    return f"slime.{check_token(run, 'run name')}.announced"


class RollCallSubjects(NamedTuple):
    """Subjects on which the takers of a queue report what they hold; nothing is stored.

    Each is a prefix: a subscription has one more token. The takers that listen to all others report on their own one.
    """

    prefix: str

    @classmethod
    def of(cls, run: str, queue: str) -> Self:
        """Return those of a queue."""
        return cls(f"slime.{check_token(run, 'run name')}.roll.{check_token(queue, 'queue')}")

    @property
    def of_listeners(self) -> str:
        """Prefix of the calls of all listeners."""
        return f"{self.prefix}.listener"

    @property
    def of_others(self) -> str:
        """Prefix of the calls of all takers that do not listen."""
        return self.of_taker("*")

    def of_taker(self, name: str) -> str:
        """Return the prefix of the calls of one taker that does not listen."""
        return f"{self.prefix}.taker.{name}"

    def call_of(self, name: str, *, listens: bool) -> str:
        """Return the subject of a taker's call."""
        return f"{self.of_listeners}.{name}" if listens else f"{self.of_taker(name)}.call"


@lru_cache(maxsize=256)
def heads_of(patterns: tuple[str, ...]) -> frozenset[str] | None:
    """Return the subject prefixes before the entity that these filters match, or None unless each names one type."""
    parts = [pattern.rpartition(".") for pattern in patterns]
    if any(last != "*" or not dot or "*" in head or ">" in head for head, dot, last in parts):
        return None
    return frozenset(head for head, _, _ in parts)


@lru_cache(maxsize=1024)
def matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a fast predicate: whether a subject matches one of these filters (see `matches`)."""
    of_types = tuple(pattern for pattern in patterns if heads_of((pattern,)) is not None)
    heads, others = heads_of(of_types) or frozenset(), [pattern for pattern in patterns if pattern not in of_types]
    if not others:
        return lambda subject: subject.rpartition(".")[0] in heads
    starts = tuple(_start_of(pattern) for pattern in others)

    def is_matched(subject: str) -> bool:
        if subject.rpartition(".")[0] in heads:
            return True
        return subject.startswith(starts) and any(matches(pattern, subject) for pattern in others)

    return is_matched


def _start_of(pattern: str) -> str:
    """Return the prefix of every subject that a filter matches: its tokens before the first wildcard."""
    start = ""
    for token in pattern.split("."):
        if token in ("*", ">"):
            return start
        start += f"{token}."
    return pattern


def matches(pattern: str, subject: str) -> bool:
    """Return whether a filter matches a subject by NATS rules: `*` is one token, a last `>` one or more."""
    want, have = pattern.split("."), subject.split(".")
    for i, token in enumerate(want):
        if token == ">":
            return len(have) > i
        if i >= len(have) or token not in ("*", have[i]):
            return False
    return len(want) == len(have)
