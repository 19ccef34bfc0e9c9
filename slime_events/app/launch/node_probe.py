"""`check_nodes`: ask each machine of a Ray whether it sees the run's folders and stores, and reaches its log."""

from __future__ import annotations

import os
import socket
import time
from urllib.parse import urlsplit

from schemas.errors import InvalidValue
from slime_events.app.launch.ray_machines import answer_of, lost_nodes, own_node, ray_machines
from slime_events.core.run.run_address import RunAddress
from slime_events.core.run.shared_places import PlaceKind, problem_of
from storage.nats.ports import is_loopback

ANSWER_S = 25.0
"""Seconds in which all machines together must answer."""
KNOCK_S = 5.0
NATS_PORT = 4222


def check_nodes(address: RunAddress, *, of_gpus: bool) -> None:
    """Ask all machines except this one. Blocks, `ANSWER_S` seconds at most.

    of_gpus: ask only machines with GPUs, where alone ranks and engines are. Raises InvalidValue with each machine, what
    is wrong there and what to do.
    """
    import ray

    task, own = ray.remote(num_cpus=0, max_retries=0)(problems_here), own_node()
    calls = [
        (machine, task.options(**machine.only).remote(address))
        for machine in ray_machines()
        if machine.node != own and (machine.gpus or not of_gpus)
    ]
    problems, until = [], time.monotonic() + ANSWER_S
    for machine, call in calls:
        there, silent = answer_of(call, until - time.monotonic(), ANSWER_S)
        if silent and machine.node in lost_nodes():
            continue  # it was lost before: Ray counts a lost machine as alive for a while, also if it is back
        problems += [f"machine {machine.address}: {problem}" for problem in ([silent] if silent else there)]
    if problems:
        raise InvalidValue("\n".join(problems))


def problems_here(address: RunAddress) -> list[str]:
    """Return what is wrong on the machine that runs this function."""
    import ray

    os.environ.update(address.secrets)
    places = (place for place in address.shared if place.kind is not PlaceKind.COPIED)
    every = [nats_problem(address.nats.url, ray.util.get_node_ip_address()), *map(problem_of, places)]
    return [problem for problem in every if problem]


def copy_models(address: RunAddress) -> None:
    """Let all other machines download the models that are at URLs. Blocks until they have them.

    Raises InvalidValue with each machine that cannot, and why.
    """
    import ray

    task, own = ray.remote(num_cpus=0)(_copies_here), own_node()
    calls = [
        (machine, task.options(**machine.only).remote(address)) for machine in ray_machines() if machine.node != own
    ]
    problems = []
    for machine, call in calls:
        try:
            there = ray.get(call)
        except ray.exceptions.RayError:
            continue  # the machine is lost, and nothing is placed there
        problems += [f"machine {machine.address}: {problem}" for problem in there]
    if problems:
        raise InvalidValue("\n".join(problems))


def _copies_here(address: RunAddress) -> list[str]:
    os.environ.update(address.secrets)
    return [problem for place in address.shared if place.kind is PlaceKind.COPIED and (problem := problem_of(place))]


def nats_problem(urls: str, own: str) -> str | None:
    """Return why no server of the log accepts a connection from this machine; None if one does.

    own: address of this machine in Ray. If it is on loopback, Ray's machines are one machine.
    """
    reasons = []
    for url in urls.split(","):
        parts = urlsplit(url.strip() if "://" in url else f"nats://{url.strip()}")
        host, port = parts.hostname or "", parts.port or NATS_PORT
        if is_loopback(host) and not is_loopback(own):
            reasons.append(f"{host} is this machine only")
            continue
        try:
            socket.create_connection((host, port), timeout=KNOCK_S).close()
        except OSError as error:
            reasons.append(f"{host}:{port} {error.strerror or error}")
        else:
            return None
    return (
        f"it does not reach the log ({', '.join(reasons)}): give --ray-address or --nats-url the address that other "
        "machines use, and open its port"
    )
