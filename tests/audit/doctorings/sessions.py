"""Sessions of agents: who makes them, what their turns are, how they end, and what of them is trained on."""

from __future__ import annotations

from functools import partial
from typing import Any

from schemas.arrays import pack
from tests.audit.doctored import Doctored, Record
from tests.audit.doctoring import Doctor, Doctoring, again, change, drop, the
from tests.simulation.simulation import SAMPLING

S = "train-0-000000-s1"
"""The first that ended well: two paths, which share their first turn."""
OPENED, SEALED = the("session.opened", sample=S), the("session.sealed", sample=S)
BEGUN, TURN = the("turn.begun", sample=S, index=0), the("turn.recorded", sample=S, index=0)
SECOND, ASKED = the("turn.recorded", sample=S, index=1), the("rollout.requested", sample=f"turn-1-{S}-s0")
DONE, FURTHER = the("rollout.completed", sample=S), the("rollout.completed", sample=f"{S}-1")
SHARED = SAMPLING.max_new_tokens
"""Tokens of the first turn, at the beginning of each response."""


def times(count: int, doctor: Doctor) -> Doctor:
    """Repeat each touched record this number of times in the findings."""

    def doctored(log: Doctored) -> list[Record]:
        return doctor(log) * count

    return doctored


def trained(start: int, end: int) -> Any:
    """A mask that has these tokens too."""

    def changed(mask: dict[str, Any]) -> dict[str, Any]:
        data = bytearray(mask["data"])
        data[start:end] = b"\1" * (end - start)
        return mask | {"data": bytes(data)}

    return changed


def flipped(array: dict[str, Any]) -> dict[str, Any]:
    return array | {"data": bytes([array["data"][0] ^ 1]) + array["data"][1:]}


def halved(log: Doctored) -> list[Record]:
    """All tokens of a sample count half."""
    done = DONE(log)
    halves = pack([0.5] * done.event["length"], "float32").data
    done.event["credit"] = {"dtype": "float32", "n": done.event["length"], "data": halves}
    return [done]


row = partial(Doctoring, "sessions", log="agents")
TABLE = (
    row("opened for a rollout that no agent was asked for", again(OPENED, sample="x-s0"), names=(0,)),
    row("opened twice", again(OPENED, key="other"), names=(0,)),
    row("a turn of no session", again(TURN, sample="x-s0")),
    row("a turn that was not begun", again(TURN, index=99)),
    row("a turn that extends nothing", times(2, again(TURN, index=99, extends=98)), names=()),
    row("a turn with another prompt", times(2, again(TURN, index=99, observed={"n": 1, "data": b"\0" * 4}))),
    row("a turn of another generation", times(2, again(TURN, index=99, agent={"call": "x"}))),
    row("a turn of a generation that continued another turn", change(ASKED, after=[S, 7, 3]), (SECOND,) * 2),
    row("a turn whose request has more of another's than there is", change(SECOND, agent={"shares": [0, 10**6, 1]})),
    row("a turn with other log-probs", change(TURN, log_probs=flipped), names=(f"turn-0-{S}-s0",)),
    row("a turn with other tokens", change(TURN, tokens=flipped)),
    row("a turn after the end", again(BEGUN, after=SEALED, index=99), names=("reward",)),
    row("an end of no session", again(SEALED, sample="x-s0"), names=(0,)),
    row("two ends", again(SEALED)),
    row("a turn that was begun and forgotten", again(BEGUN, index=99), (SEALED,), names=(99,)),
    row("a path that ends with nothing", change(SEALED, leaves=[2, 1, 98]), names=(98,)),
    row("trained on before its end", drop(SEALED), (FURTHER, DONE)),
    row("trained on though its program failed", change(SEALED, exit_code=3), (FURTHER, DONE), names=(3,)),
    row("a sample of no path", again(FURTHER, sample=f"{S}-7"), names=(2,)),
    row("a turn that is trained on twice", change(FURTHER, loss_mask=trained(0, SHARED)), (DONE,), names=(0,)),
    row("turns that count less than the rule says", times(2, halved), names=(2,)),
    row("trained on what no turn made", change(DONE, loss_mask=trained(SHARED, SHARED + 1)), names=(SHARED,)),
)
