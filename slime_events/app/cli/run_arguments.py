"""`read_words`: the words of a command that takes the flags of a run's settings beside its own, and may take a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from schemas.errors import InvalidValue


@dataclass(slots=True)
class Words:
    """run: the first word that is no flag, "" for none. own: values of the command's own flags. switches: those of them
    without a value that were given. flags: for the settings, as they stood.
    """

    run: str = ""
    own: dict[str, str] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)
    flags: list[str] = field(default_factory=list)


def read_words(argv: Sequence[str], values: Collection[str], switches: Collection[str] = ()) -> Words:
    """Tell them apart. Raises InvalidValue for a flag of the command's own without its value."""
    left, words = list(argv), Words()
    while left:
        word = left.pop(0)
        name, equals, inline = word.partition("=")
        if word in switches:
            words.switches.add(word)
        elif name in values:
            if not equals and not left:
                raise InvalidValue(f"{name} needs a value.")
            words.own[name] = inline if equals else left.pop(0)
        elif not words.run and not words.flags and not word.startswith("-"):
            words.run = word
        else:
            words.flags.append(word)
    return words


def version_of(text: str) -> int:
    """The value of --from. Raises InvalidValue."""
    if not text.removeprefix("v").isdecimal():
        raise InvalidValue(f"--from {text}: give a weight version, such as 5")
    return int(text.removeprefix("v"))
