"""slime's helpers for ports, hosts and processes, for user code that starts servers or tools."""

import ipaddress
import os
import random
import socket
import subprocess
from multiprocessing.process import BaseProcess

from schemas.errors import PlugPointError


def is_port_available(port: int) -> bool:
    """Return whether no process on this machine listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except (OSError, OverflowError):
            return False
        return True


def find_available_port(base_port: int) -> int:
    """Return a free port at least 100 to 1000 above `base_port`. Raises PlugPointError if there is none."""
    return _first_free(base_port + random.randint(100, 1000), 1)


def get_free_port(start_port: int = 10000, consecutive: int = 1) -> int:
    """Return the first of `consecutive` free ports in a row. Raises PlugPointError if there are none."""
    return _first_free(start_port, consecutive)


def _first_free(start: int, count: int) -> int:
    for port in range(start, 65536 - count + 1):
        if all(is_port_available(port + more) for more in range(count)):
            return port
    raise PlugPointError(f"no {count} free ports in a row at or above {start}")


def get_host_info() -> tuple[str, str]:
    """Return this machine's name, and `SLIME_HOST_IP` or else the address of its default route or 127.0.0.1."""
    name = socket.gethostname()
    if address := os.environ.get("SLIME_HOST_IP"):
        return name, address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: the kernel picks the address
        except OSError:
            return name, "127.0.0.1"
        return name, str(probe.getsockname()[0])


def get_current_node_ip() -> str:
    """Return the address of `get_host_info`."""
    return get_host_info()[1]


def wrap_ipv6(host: str) -> str:
    """Return the host as a URL has it: IPv6 in brackets."""
    try:
        return f"[{ipaddress.IPv6Address(host.strip('[]'))}]"
    except ValueError:
        return host


def exec_command(cmd: str, capture_output: bool = False) -> str | None:
    """Run a bash command line. Return its output if `capture_output` is set. Raises CalledProcessError."""
    print(f"EXEC: {cmd}", flush=True)
    done = subprocess.run(["bash", "-c", cmd], check=True, capture_output=capture_output, text=True)
    return done.stdout if capture_output else None


def terminate_process(process: BaseProcess, timeout: float = 1.0) -> None:
    """Send SIGTERM to a process, and SIGKILL after `timeout` seconds."""
    if process.is_alive():
        process.terminate()
        process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()


def init_http_client(args: object) -> None:
    """Do nothing: `post` and `get` need no client."""


def run_router(args: object) -> int:
    """Raise PlugPointError. slime starts its router with this function."""
    raise PlugPointError(
        "run_router: there is no router here; engines take their work from the log, and a generate function finds its "
        "engine at args.sglang_router_ip:args.sglang_router_port"
    )
