"""`Attack`: what is sent through which door, and which answers mean that it was refused or bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from tests.harness.attacks.scene import Scene

REFUSED = frozenset({400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 421, 422, 429, 431})
TAKEN = frozenset({200, 201, 202})
SHOWN = 90


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of an attack. text: in a few words. ok: whether the attack was refused or bounded."""

    text: str
    ok: bool


Act = Callable[["Scene"], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. door: by which it comes in. expects: in words. seconds: after which it hangs."""

    name: str
    door: str
    expects: str
    act: Act
    seconds: float = 60.0


def answer_of(response: httpx.Response, expected: Collection[int]) -> Answer:
    """A response: its status, and the first words of its reason."""
    text = " ".join(response.text[:4000].split())
    at = text.find('"message"')
    return Answer(f"{response.status_code} {text[max(0, at) :][:SHOWN]}", response.status_code in expected)


def expects(expected: Collection[int]) -> str:
    """In words."""
    if expected == REFUSED:
        return "refused"
    return "refused or taken" if expected == REFUSED | TAKEN else " or ".join(map(str, sorted(expected)))
