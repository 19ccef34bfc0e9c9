"""`survey`: look at each machine of a Ray, and at what lies between them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.errors import DeadlineExceeded, reason_of
from schemas.references import references_in
from slime_events.app.launch.node_look import MEET_S, NodeLook, facts_of
from slime_events.app.launch.ray_machines import answer_of, lost_machines, ray_machines
from slime_events.core.machine.node_facts import NodeFacts
from slime_events.core.run.network import carried_variables
from slime_events.core.run.own_python import own_path
from slime_events.core.run.places import store_variables
from slime_events.core.run.shared_places import SharedPlace

ANSWER_S = 60.0
"""Seconds in which a machine must answer. Its first answer takes the start of a process and its imports."""
CLOCK_LOOKS = 5
VISIBLE = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"


class Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as the others see it. `silent` is empty if it answered; otherwise nothing else is known."""

    address: Annotated[str, doc("on the network of its Ray")]
    silent: Annotated[str, doc("why it does not answer")] = ""
    facts: Annotated[NodeFacts | None, doc("None: it does not answer")] = None
    ahead_ns: Annotated[int, doc("its clock minus that of this machine [ns]")] = 0
    exact_ns: Annotated[int, doc("the difference is exact to this [ns]")] = 0
    closed: Annotated[dict[str, str], doc("machines that it does not reach, with the reasons")] = {}
    taken: Annotated[dict[int, str], doc("ports that are taken there, of those that must be free")] = {}
    problems: Annotated[tuple[str, ...], doc("places that it does not see as this machine does")] = ()


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of a Ray, by address."""

    machines: tuple[Surveyed, ...]
    meeting: Annotated[str, doc("why they cannot add up a tensor together; empty if they can, or it was not tried")] = (
        ""
    )
    backend: Annotated[str, doc("`nccl` or `gloo`; empty: not tried")] = ""


class _Machine(msgspec.Struct, kw_only=True):
    """A machine during a survey. look: handle of its `NodeLook`."""

    address: str
    has_gpus: bool
    look: Any
    seen: Surveyed

    def note(self, **fields: object) -> None:
        self.seen = msgspec.structs.replace(self.seen, **fields)


def survey(ray_address: str, places: Sequence[SharedPlace] = (), ports: Sequence[int] = ()) -> Survey:
    """Look at all machines of the Ray at an address. places: as this machine has marked them. ports: to be free.

    Blocks, minutes if machines do not answer. Raises DeadlineExceeded if Ray does not answer.
    """
    import ray

    variables = {**own_path(), **carried_variables(), VISIBLE: "0"}
    try:
        ray.init(address=ray_address, log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": variables})
    except (Exception, SystemExit) as error:  # Ray raises many types, and each means that it does not answer
        raise DeadlineExceeded(f"Ray at {ray_address} does not answer: {reason_of(error)}") from error
    urls = [place.url for place in places]
    try:
        named = {name: os.environ[name] for name in references_in(urls) if name in os.environ}
        machines = _machines(store_variables() | named)
        _ask(
            machines,
            lambda machine: machine.look.facts.remote(machine.has_gpus),
            lambda machine, answer: machine.note(facts=facts_of(answer)),
        )
        for machine in _answering(machines):
            _compare_clock(machine)
        _ask(
            machines,
            lambda machine: machine.look.taken.remote(list(ports)),
            lambda machine, answer: machine.note(taken=answer),
        )
        _knock(machines)
        _ask(
            machines,
            lambda machine: machine.look.problems.remote(list(places)),
            lambda machine, answer: machine.note(problems=tuple(answer)),
        )
        meeting, backend = _meet(_answering(machines))
        lost = lost_machines()
        seen = [
            *(machine.seen for machine in machines if machine.address not in lost),
            *(Surveyed(address=address, silent=f"Ray has lost it ({reason})") for address, reason in lost.items()),
        ]
        return Survey(machines=tuple(seen), meeting=meeting, backend=backend)
    finally:
        ray.shutdown()


def _machines(variables: dict[str, str]) -> list[_Machine]:
    """Start a look on each machine that Ray counts as alive, with the variables."""
    import ray

    actor = ray.remote(num_cpus=0, max_restarts=0)(NodeLook)
    return [
        _Machine(
            address=machine.address,
            has_gpus=bool(machine.gpus),
            look=actor.options(**machine.only).remote(machine.address, variables),
            seen=Surveyed(address=machine.address),
        )
        for machine in ray_machines()
    ]


def _answering(machines: Sequence[_Machine]) -> list[_Machine]:
    return [machine for machine in machines if not machine.seen.silent]


def _ask(machines: Sequence[_Machine], call: Callable[[_Machine], Any], note: Callable[[_Machine, Any], None]) -> None:
    """Ask all machines at once, and note their answers. A machine that does not answer is asked no more."""
    calls, until = [(machine, call(machine)) for machine in _answering(machines)], time.monotonic() + ANSWER_S
    for machine, reference in calls:
        answer, silent = answer_of(reference, until - time.monotonic(), ANSWER_S)
        if silent:
            machine.note(silent=silent)
        else:
            note(machine, answer)


def _compare_clock(machine: _Machine) -> None:
    """Note how far its clock is ahead: by the shortest of some questions, as its answer came half of that time ago."""
    looks = []
    for _ in range(CLOCK_LOOKS):
        begun = time.time_ns()
        there, silent = answer_of(machine.look.clock.remote(), ANSWER_S, ANSWER_S)
        if silent:
            machine.note(silent=silent)
            return
        took = time.time_ns() - begun
        looks.append((took, there - (begun + took // 2)))
    took, ahead = min(looks)
    machine.note(ahead_ns=ahead, exact_ns=took // 2)


def _knock(machines: Sequence[_Machine]) -> None:
    """Let each machine connect to a port of each other machine."""
    doors: dict[str, int] = {}
    _ask(
        machines,
        lambda machine: machine.look.door.remote(),
        lambda machine, port: doors.update({machine.address: port}),
    )
    _ask(
        machines, lambda machine: machine.look.knock.remote(doors), lambda machine, closed: machine.note(closed=closed)
    )


def _meet(machines: Sequence[_Machine]) -> tuple[str, str]:
    """Let the machines add up a tensor. Returns why they cannot, and the backend."""
    if len(machines) < 2:
        return "", ""
    on_gpus = all(machine.has_gpus for machine in machines)
    host, _ = answer_of(machines[0].look.meeting.remote(), ANSWER_S, ANSWER_S)
    calls = [
        machine.look.add_up.remote(rank, len(machines), host, on_gpus=on_gpus) for rank, machine in enumerate(machines)
    ]
    until, backend = time.monotonic() + MEET_S + ANSWER_S, "nccl" if on_gpus else "gloo"
    for machine, call in zip(machines, calls, strict=True):
        total, silent = answer_of(call, until - time.monotonic(), MEET_S + ANSWER_S)
        if silent or total != len(machines):
            return f"{machine.address}: {silent or f'the sum of {len(machines)} ones is {total}'}", backend
    return "", backend
