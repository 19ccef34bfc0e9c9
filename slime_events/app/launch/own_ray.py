"""`make_small`: what a Ray that is started for one run on this machine does without.

Ray has no switches for it. Which of its private names are used stands in storage/reaches.toml.
"""

import functools
import os
import sys
from pathlib import Path
from typing import Any

from slime_events.core.run.process_environment import GENERATES
from storage.nats.ports import free_port

CALM = {
    "RAY_worker_niceness": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25",
}
"""Ray would have all its workers yield to everything else on the machine; here they know who yields to whom. It would
start a worker on every core, a second of each, and there are few actors. Its metrics have no reader, and its look at a
few replicas ten times a second takes 6 % of a core.
"""
ONLOOKERS = ("start_monitor", "start_api_server", "start_log_monitor")
"""An autoscaler, a server for the dashboard and a reader of logs. On one machine they have nothing to do, and cost two
seconds of each start.
"""
STAND_IN = [sys.executable, "-I", "-S", str(Path(__file__).with_name("ends_with_parent.py"))]
"""In the place of the dashboard's agent, without which Ray's node does not run: a second of CPU, and then memory, for
nobody.
"""

AFTER_OTHERS = ["nice", "-n", str(GENERATES)]
"""The agent for environments of single processes, such as --train-env-vars: most runs ask nothing of it."""

PORTS = ("dashboard_agent_listen_port", "metrics_agent_port", "metrics_export_port")


def make_small() -> None:
    """Before `ray.init` of such a Ray. Once is enough, more often does no harm."""
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
    def command_or_stand_in(component: str, *arguments: Any, **named: Any) -> Any:
        if component == PROCESS_TYPE_DASHBOARD_AGENT:
            return STAND_IN
        later = AFTER_OTHERS if component == PROCESS_TYPE_RUNTIME_ENV_AGENT else []
        return later + command_of(component, *arguments, **named)

    @functools.wraps(start_raylet)
    def start_without_waiting(node: Any, *arguments: Any, **named: Any) -> None:
        session = Path(node._session_dir)
        session.chmod(0o700)  # Ray makes its sockets and logs for all users of the machine
        _tell_ports(node)
        start_raylet(node, *arguments, **named)
        session.chmod(0o700)  # it is where Ray spills objects to, too, and was opened again for that

    services._build_python_executable_command_memory_profileable = command_or_stand_in
    Node.start_raylet = start_without_waiting


def _tell_ports(node: Any) -> None:
    """Those that Ray's node waits for before it takes work: until its agents have imported Ray and say them.

    -1 is what a dashboard's agent says of what it does not serve. The other agent is told its port.
    """
    from ray._raylet import persist_port  # type: ignore[attr-defined]  # its stub lacks it

    for name in PORTS:
        persist_port(node._session_dir, node._node_id, name, -1)
    node._ray_params.runtime_env_agent_port = free_port()


def _original(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)
