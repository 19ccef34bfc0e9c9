"""`KINDS`: every kind of attack, in order, by the run that it needs."""

from __future__ import annotations

from dataclasses import dataclass

from tests.harness.attacks import (
    archives,
    bodies,
    environment,
    grammars,
    heads,
    ids,
    prompts,
    sockets,
    streams,
    terminal,
    texts,
    tinker_calls,
    values,
)
from tests.harness.attacks.attack import Attack


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of attack. numbers: of what is attacked, in words. place: the run that it needs. side_by_side: its attacks
    run at the same time. after: once the run is over, in its folder.
    """

    about: str
    place: str
    attacks: list[Attack]
    side_by_side: bool = False
    after: bool = False


KINDS: dict[str, Kind] = {
    "heads": Kind("long heads, paths and names", "agents", heads.ATTACKS),
    "prompts": Kind("prompts, rollouts and rewards that are none", "agents", prompts.ATTACKS),
    "ids": Kind("ids that the model does not have", "agents", ids.ATTACKS),
    "texts": Kind("half a character, control characters, a megabyte", "agents", texts.ATTACKS),
    "grammars": Kind("grammars and parameters that engines refuse", "agents", grammars.ATTACKS),
    "bodies": Kind("large and deep bodies", "agents", bodies.ATTACKS),
    "sockets": Kind("half-sent heads, slow bodies and readers", "agents", sockets.ATTACKS),
    "streams": Kind("event streams", "agents", streams.ATTACKS),
    "environment": Kind("what programs and other users see", "agents", environment.ATTACKS),
    "terminal": Kind("what commands print", "agents", terminal.ATTACKS),
    "archives": Kind("archives of somebody else's", "agents", archives.ATTACKS, after=True),
    "values": Kind("what a user's functions raise, return and set", "own", values.ATTACKS, side_by_side=True),
    "tinker": Kind("calls that are refused, and the next ones", "tinker", tinker_calls.ATTACKS),
}
PLACES = ("agents", "own", "tinker")
