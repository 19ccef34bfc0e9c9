"""`make_small`: turn off the parts of a local Ray that one run does not need.

Ray has no options for this. storage/reaches.toml lists the private names of Ray that this module uses.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime_events.core.run.process_environment import NICE_GENERATION
from storage.nats.ports import free_port

if TYPE_CHECKING:
    from ray._private.node import Node

CALM = {
    "RAY_worker_niceness": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25",
}
"""By default Ray lowers the priority of all workers, but the roles of a run set their own. It starts a worker on every
core, which takes a second of each, but a run has few actors. Nothing reads its metrics, and checking the replicas ten
times a second takes 6 % of a core.
"""
ONLOOKERS = ("start_monitor", "start_api_server", "start_log_monitor")
"""Start methods of an autoscaler, a dashboard server and a log reader. One machine does not need them, and they add two
seconds to each start.
"""
STAND_IN = [sys.executable, "-I", "-S", str(Path(__file__).with_name("ends_with_parent.py"))]
"""Replaces the dashboard's agent, without which Ray's node does not run. The real agent takes a second of CPU and
memory, and a run does not use it.
"""

AFTER_OTHERS = ["nice", "-n", str(NICE_GENERATION)]
"""Prefix for the agent of runtime environments, such as --train-env-vars: most runs do not use it."""

PORTS = ("dashboard_agent_listen_port", "metrics_agent_port", "metrics_export_port")


def make_small() -> None:
    """Patch Ray before `ray.init` of a local Ray. May be called more than once."""
    from ray._private import services
    from ray._private.node import Node
    from ray._private.ray_constants import PROCESS_TYPE_DASHBOARD_AGENT, PROCESS_TYPE_RUNTIME_ENV_AGENT

    for name, value in CALM.items():
        os.environ.setdefault(name, value)
    # Ray turns a loopback address into the machine's own, and then listens to the whole network.
    services.resolve_ip_for_localhost = lambda host: host
    for name in ONLOOKERS:
        setattr(Node, name, lambda _, **__: None)
    command_of, start_raylet = (
        _original(services._build_python_executable_command_memory_profileable),
        _original(Node.start_raylet),
    )

    @functools.wraps(command_of)
    def command_or_stand_in(component: str, *arguments: object, **named: object) -> list[str]:
        if component == PROCESS_TYPE_DASHBOARD_AGENT:
            return STAND_IN
        later = AFTER_OTHERS if component == PROCESS_TYPE_RUNTIME_ENV_AGENT else []
        command: list[str] = command_of(component, *arguments, **named)
        return later + command

    @functools.wraps(start_raylet)
    def start_without_waiting(node: Node, *arguments: object, **named: object) -> None:
        session = Path(node._session_dir)
        session.chmod(0o700)  # Ray creates its sockets and logs readable for all users
        _set_ports(node)
        start_raylet(node, *arguments, **named)
        session.chmod(0o700)  # Ray also spills objects to this folder, and opens it again for that

    services._build_python_executable_command_memory_profileable = command_or_stand_in
    Node.start_raylet = start_without_waiting


def _set_ports(node: Node) -> None:
    """Set the ports for which Ray's node otherwise waits until its agents have imported Ray and reported them.

    -1 means that an agent does not serve the port. The agent of runtime environments gets a free port.
    """
    from ray._raylet import persist_port  # type: ignore[attr-defined]  # its stub lacks it

    for name in PORTS:
        persist_port(node._session_dir, node._node_id, name, -1)
    node._ray_params.runtime_env_agent_port = free_port()


def _original(function: Callable[..., Any]) -> Callable[..., Any]:
    original: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return original
