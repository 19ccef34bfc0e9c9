"""`check_sockets`: find sockets of running runs and of Ray that listen beyond loopback, and say what uses them."""

import contextlib
import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from slime_events.app.cli.checks import Check, Outcome

_USES = (
    (
        "nats-server",
        "the log; clients need its credentials",
        "it listens where --ray-address is; or use --nats-url",
    ),
    ("ServeReplica", "Ray Serve's calls to an engine's replica", ""),
    ("gcs_server", "Ray's tables", ""),
    ("raylet", "Ray's node: workers and objects", ""),
    ("dashboard", "Ray's dashboard or its agent", ""),
    ("ray::", "calls between Ray's processes", ""),
    ("sglang", "calls between the ranks of one engine", ""),
)
_RAY_MEND = "leave --ray-address out, start that Ray with --node-ip-address=127.0.0.1, or close it with a firewall"
_OTHER = "it belongs to a run"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket."""

    address: Annotated[str, doc("IP address, without a zone")]
    port: int
    process: Annotated[str, doc("Command line of the process")]

    @property
    def is_open(self) -> bool:
        """Whether the socket listens beyond loopback."""
        address = ipaddress.ip_address(self.address)
        mapped = getattr(address, "ipv4_mapped", None)
        return not (mapped or address).is_loopback

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port} ({_use_of(self.process)[0]})"


def _use_of(process: str) -> tuple[str, str]:
    return next(((why, mend or _RAY_MEND) for name, why, mend in _USES if name in process), (_OTHER, _RAY_MEND))


def listeners() -> Iterator[Listener]:
    """Yield the listening sockets of processes that a launcher or Ray started and this user may inspect.

    Needs psutil.
    """
    import psutil  # type: ignore[import-untyped, unused-ignore]

    from slime_events.app.launch.run_lock import MARK  # imports numpy

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended, or belongs to another user
            line = " ".join(process.cmdline())
            if "ray::" not in line and "/ray/" not in line and MARK not in process.environ():
                continue
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    yield Listener(connection.laddr.ip.partition("%")[0], connection.laddr.port, line)


def check_sockets(sockets: Iterable[Listener] | None = None) -> Check:
    """Check that no socket listens beyond loopback. A run opens none; a NATS server or Ray of the user's may."""
    try:
        there = list(listeners() if sockets is None else sockets)
    except ImportError:
        return Check("sockets", Outcome.WARN, "unknown", "pip install psutil")
    beyond = sorted({str(item): item for item in there if item.is_open}.values(), key=lambda s: (s.address, s.port))
    if not beyond:
        detail = f"{len(there)} listen, all on loopback" if there else "none: no run is running"
        return Check("sockets", Outcome.OK, detail)
    mends = dict.fromkeys(_use_of(item.process)[1] for item in beyond)
    return Check("sockets", Outcome.WARN, "beyond loopback: " + ", ".join(map(str, beyond)), "; ".join(mends))
