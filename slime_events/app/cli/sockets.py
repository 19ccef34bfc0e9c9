"""`check_sockets`: what listens beyond loopback of the runs, and of a Ray, that are on here; and why it does."""

import contextlib
import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slime_events.app.cli.checks import Check, Outcome

_USES = (
    ("nats-server", "the log: who reaches it needs its credentials", "give the server that others reach by --nats-url"),
    ("ServeReplica", "Ray Serve's calls to an engine's replica", ""),
    ("gcs_server", "Ray's tables", ""),
    ("raylet", "Ray's node: workers and objects", ""),
    ("dashboard", "Ray's dashboard or an agent of it", ""),
    ("ray::", "calls between Ray's processes", ""),
    ("sglang", "ranks of one engine among each other", ""),
)
_RAY_MEND = (
    "leave --ray-address out, or start that Ray with --node-ip-address=127.0.0.1; else a firewall has to close it"
)
_OTHER = "it belongs to a run"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket. process: its command line. address: without a zone."""

    address: str
    port: int
    process: str

    @property
    def is_open(self) -> bool:
        """Whether it listens beyond loopback."""
        address = ipaddress.ip_address(self.address)
        mapped = getattr(address, "ipv4_mapped", None)
        return not (mapped or address).is_loopback

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port} ({_use_of(self.process)[0]})"


def _use_of(process: str) -> tuple[str, str]:
    return next(((why, mend or _RAY_MEND) for name, why, mend in _USES if name in process), (_OTHER, _RAY_MEND))


def listeners() -> Iterator[Listener]:
    """Of every process here that a launcher or Ray has started, as far as this user may look. Needs psutil."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    from slime_events.app.launch.run_lock import MARK  # all events, and so numpy, come with it

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended, or is somebody else's
            line = " ".join(process.cmdline())
            if "ray::" not in line and "/ray/" not in line and MARK not in process.environ():
                continue
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    yield Listener(one.laddr.ip.partition("%")[0], one.laddr.port, line)


def check_sockets(found: Iterable[Listener] | None = None) -> Check:
    """A run of its own listens on loopback alone; what a server or Ray of the user's opens is listed."""
    try:
        there = list(listeners() if found is None else found)
    except ImportError:
        return Check("sockets", Outcome.WARN, "unknown", "pip install psutil")
    beyond = sorted({str(one): one for one in there if one.is_open}.values(), key=lambda one: (one.address, one.port))
    if not beyond:
        found_ones = f"{len(there)} listen, all on loopback" if there else "no run is on, and none would be open"
        return Check("sockets", Outcome.OK, found_ones)
    mends = dict.fromkeys(_use_of(one.process)[1] for one in beyond)
    return Check("sockets", Outcome.WARN, "beyond loopback: " + ", ".join(map(str, beyond)), "; ".join(mends))
