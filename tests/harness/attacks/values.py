"""B5 and B6: what a user's functions raise, return and set, row by row; each costs its own group at most."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from tests.harness.attacks import own_code
from tests.harness.attacks.attack import Answer, Attack
from tests.harness.attacks.scene import Scene

DECIDED = frozenset({"accepted", "rejected", "trained"})
WAIT_S = 300.0
"""Seconds for a group's fate: it waits for its turn, its attempts and its step."""


async def row(scene: Scene, who: str, do: str) -> Answer:
    """Send a prompt whose metadata says what the function does; return the fate of its group."""
    body = {"key": f"{who} {do}", "prompt": "1+1", "label": "2", "priority": 5, "metadata": {who: do}}
    sent = await scene.post("prompts", body)
    if sent.status_code != 202:
        return Answer(f"{sent.status_code} {sent.text[:80]}", False)
    group = sent.json()["groups"][0]["group"]
    began = time.monotonic()
    while time.monotonic() - began < WAIT_S:
        answer = await scene.http.get(f"/v1/runs/{scene.run}/groups/{group}", headers=scene.bearer)
        fate = answer.json() if answer.status_code == 200 else {}
        if fate.get("fate") in DECIDED:
            reason = " ".join(str(fate.get("reason") or "").split())
            return Answer(f"{fate['fate']} {reason}"[:100].encode("ascii", "backslashreplace").decode(), True)
        await asyncio.sleep(0.5)
    return Answer(f"undecided after {WAIT_S:.0f} s", False)


def _attack(who: str, do: str) -> Attack:
    return Attack(do, f"a {who} function", "the group is decided", partial(row, who=who, do=do), WAIT_S + 30)


GENERATE = (
    *own_code.RAISED,
    *own_code.RETURNED,
    *own_code.SET,
    *own_code.TOKENS,
    *(f"prompt {token}" for token in own_code.TOKENS),
)
REWARD = (*own_code.RAISED, *own_code.RETURNED, *own_code.DETAILS)
ATTACKS: list[Attack] = [*(_attack("generate", do) for do in GENERATE), *(_attack("reward", do) for do in REWARD)]
