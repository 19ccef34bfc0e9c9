"""Subjects: `slime.<run>.<noun>.<verb>.<entity>`, and the filters over them."""

import re
from collections.abc import Callable
from functools import lru_cache

from schemas.errors import InvalidSubject
from schemas.event import Event, type_of
from schemas.registry import BY_TYPE, NOUNS

_TOKEN = re.compile(r"[A-Za-z0-9_\-]+")


@lru_cache(maxsize=4096)
def check_token(token: str, what: str) -> str:
    """The token itself, or InvalidSubject: letters, digits, `-` and `_` only."""
    if not is_token(token):
        raise InvalidSubject(f"{what} {token!r} cannot be part of a subject: use letters, digits, '-' and '_' only")
    return token


def is_token(text: str) -> bool:
    """Whether a subject of ours may have this as a token."""
    return _TOKEN.fullmatch(text) is not None


def subject_of(run: str, event: Event) -> str:
    """The subject of an event, e.g. `slime.demo.rollout.completed.train-0-7-s3`."""
    return f"slime.{check_token(run, 'run name')}.{type_of(event)}.{check_token(event.entity(), 'entity')}"


def every_event(run: str) -> str:
    """All of a run."""
    return f"slime.{run}.>"


def of_type(run: str, event_type: str) -> str:
    """All events of one type, e.g. `rollout.requested`."""
    return f"slime.{run}.{event_type}.*"


def about(run: str, noun: str, entity: str) -> str:
    """All events of one noun about one entity: the usual fence."""
    return f"slime.{run}.{noun}.*.{entity}"


@lru_cache(maxsize=4096)  # fences are looked up by it several times on their way into the log
def any_verb(subject: str) -> str:
    """`slime.run.noun.verb.entity` with `*` for its verb, as `about` gives it; any other subject unchanged."""
    tokens = subject.split(".")
    return ".".join((*tokens[:3], "*", tokens[4])) if len(tokens) == 5 else subject


def everything_about(run: str, entity: str) -> str:
    """All events about one entity: the fence of a rollout that has turns."""
    return f"slime.{run}.*.*.{entity}"


def named_by(pattern: str) -> list[str] | None:
    """All subjects that a filter can match, where it names the entity; None where it does not."""
    tokens = pattern.split(".")
    if len(tokens) != 5 or tokens[4] in ("*", ">"):
        return None
    slime, run, *_, entity = tokens
    subjects = (f"{slime}.{run}.{event_type}.{entity}" for event_type in BY_TYPE)
    return [subject for subject in subjects if matches(pattern, subject)]


def stream_subjects(run: str) -> list[str]:
    """The subjects that the run's stream stores: not the inbox, not replies."""
    check_token(run, "run name")
    return [f"slime.{run}.{noun}.>" for noun in NOUNS]


_STREAM = "SLIME_"


def stream_name(run: str) -> str:
    """The JetStream stream of a run."""
    return f"{_STREAM}{check_token(run, 'run name')}"


def run_of_stream(stream: str) -> str:
    """The run whose stream has this name."""
    return stream.removeprefix(_STREAM)


def past_stream_name(run: str) -> str:
    """The stream that keeps what is known of events that have left the run's stream; `+` is in no run's name."""
    return f"{stream_name(run)}+past"


def entrance(run: str, door: str) -> str:
    """What the subjects begin with on which a stream that lets events go takes them in; it stores them without."""
    return f"slime.{check_token(run, 'run name')}.at.{door}."


def past_entrance(run: str) -> str:
    """The same of the stream of what has left."""
    return f"slime.{check_token(run, 'run name')}.past."


def inbox(run: str, what: str = "prompts") -> str:
    """Where outside producers send, as request and reply; not stored."""
    return f"slime.{check_token(run, 'run name')}.inbox.{what}"


def fates(run: str, source: str) -> str:
    """Where a source of prompts is told what becomes of them; not stored."""
    return f"slime.{check_token(run, 'run name')}.fates.{check_token(source, 'source')}"


def told(run: str, whom: str) -> str:
    """What the subjects begin with on which somebody is told of events that are stored; not stored themselves."""
    return f"slime.{check_token(run, 'run name')}.told.{check_token(whom, 'name')}"


def early(run: str, whom: str) -> str:
    """The same, of events that are about to be stored."""
    return f"slime.{check_token(run, 'run name')}.early.{check_token(whom, 'name')}"


def roll_call(run: str, queue: str) -> str:
    """What the subject begins with on which the takers of a queue say what they hold; not stored."""
    return f"slime.{check_token(run, 'run name')}.roll.{check_token(queue, 'queue')}"


@lru_cache(maxsize=256)
def heads_of(patterns: tuple[str, ...]) -> frozenset[str] | None:
    """What subjects begin with that one of these filters matches, up to the entity; None unless each is of a type."""
    parts = [one.rpartition(".") for one in patterns]
    if any(last != "*" or not dot or "*" in head or ">" in head for head, dot, last in parts):
        return None
    return frozenset(head for head, _, _ in parts)


@lru_cache(maxsize=1024)
def matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a subject matches one of these filters, as `matches` says: for a reader that has many to look at."""
    of_types = tuple(one for one in patterns if heads_of((one,)) is not None)
    heads, others = heads_of(of_types) or frozenset(), [one for one in patterns if one not in of_types]
    if not others:
        return lambda subject: subject.rpartition(".")[0] in heads
    starts = tuple(_start_of(one) for one in others)

    def is_matched(subject: str) -> bool:
        if subject.rpartition(".")[0] in heads:
            return True
        return subject.startswith(starts) and any(matches(one, subject) for one in others)

    return is_matched


def _start_of(pattern: str) -> str:
    """What every subject begins with that a filter matches: its tokens before the first wildcard."""
    start = ""
    for token in pattern.split("."):
        if token in ("*", ">"):
            return start
        start += f"{token}."
    return pattern


def matches(pattern: str, subject: str) -> bool:
    """NATS wildcard rules: `*` is one token, a last `>` is one or more."""
    want, have = pattern.split("."), subject.split(".")
    for i, token in enumerate(want):
        if token == ">":
            return len(have) > i
        if i >= len(have) or token not in ("*", have[i]):
            return False
    return len(want) == len(have)
