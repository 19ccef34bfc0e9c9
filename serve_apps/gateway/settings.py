"""`GatewaySettings`: where a gateway listens, and whom it answers."""

from __future__ import annotations

import ipaddress

import msgspec

from schemas.errors import InvalidValue
from serve_apps.gateway.deadlines import Deadlines
from slime_events.core.config.gateway import DEFAULT, RunGatewaySettings

MB = 1024 * 1024


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """origins: of web pages that may use it. hosts: further names that it answers by (`Host`), beside its address.
    max_body: bytes of a request; lines of NDJSON are taken as they come, up to this. max_connections: requests that are
    answered at once, fewer where the process may not open so many files; others get a 503. address_share: of them that
    one address may have. head_s: for the head of a request, or a TLS handshake. body_s: within which `body_bytes` of a
    body have to come, or its end. write_s: for a client to read as much of an answer. keep_alive_s: for its next
    request. How long an answer takes is not limited. streams: that one source may follow at once. poll_s: between two
    looks at the log for somebody who follows a group. insecure: beyond this machine without TLS. role: it is one of the
    run's, whose flags have other names than those of the command. nats_creds: file of a gateway's credentials, for a
    run on a NATS server of the user's own; by default those that the run was given.
    """

    host: str = "127.0.0.1"
    port: int = 8500
    tls_cert: str = ""
    tls_key: str = ""
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_body: int = 64 * MB
    max_connections: int = 2000
    address_share: float = 0.75
    head_s: float = 10.0
    body_s: float = 10.0
    body_bytes: int = 32 * 1024
    write_s: float = 30.0
    keep_alive_s: int = 15
    streams: int = 200
    poll_s: float = 0.5
    insecure: bool = False
    nats_creds: str = ""
    role: bool = False

    @classmethod
    def of_run(cls, run: RunGatewaySettings, *, role: bool = True, nats_creds: str = "") -> GatewaySettings:
        """Of a run's own gateway, or of the command, whose flags are those of a run. Raises InvalidValue."""
        host, port = parse_listen(run.gateway or DEFAULT, "--gateway" if role else "--listen")
        return cls(
            host=host,
            port=port,
            tls_cert=run.gateway_tls_cert or "",
            tls_key=run.gateway_tls_key or "",
            origins=tuple(run.gateway_allow_origin),
            hosts=tuple(run.gateway_host_name),
            insecure=run.gateway_insecure,
            nats_creds=nats_creds,
            role=role,
        ).checked()

    @property
    def deadlines(self) -> Deadlines:
        """Of a client that is slow."""
        return Deadlines(self.head_s, self.body_s, self.body_bytes, self.write_s)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    @property
    def names(self) -> frozenset[str]:
        """What `Host` may say, without a port."""
        own = {"localhost", "127.0.0.1", "::1"} if self.is_loopback else {self.host}
        return frozenset({*own, *self.hosts})

    @property
    def own_url(self) -> str:
        """By which this machine reaches it."""
        host = self.hosts[0] if self.hosts and not self.is_loopback else self.host
        return f"{'https' if self.tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def flag(self, name: str) -> str:
        """How the user gives a setting: `listen`, or one that command and role both have."""
        if name == "listen":
            return "--gateway" if self.role else "--listen"
        return f"--gateway-{name}" if self.role else f"--{name}"

    @property
    def listens(self) -> str:
        """As the user gave it."""
        return f"{self.flag('listen')} {self.host}:{self.port}"

    def checked(self) -> GatewaySettings:
        """Itself. Raises InvalidValue where tokens would cross a network in clear text, or a part is missing."""
        cert, key, name = map(self.flag, ("tls-cert", "tls-key", "host-name"))
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidValue(f"{cert} and {key}: give both, the certificate and its key")
        if not (self.is_loopback or self.tls_cert or self.insecure):
            raise InvalidValue(
                f"{self.listens} is beyond this machine, and tokens would cross the network in clear text: give {cert} "
                f"and {key}, or {self.flag('insecure')} where something in front of it does TLS"
            )
        if not (self.is_loopback or self.hosts) and ipaddress_or_none(self.host) in ANY:
            raise InvalidValue(f"{self.listens} is no name: give that by which clients reach it with {name}")
        if self.role and not self.port:
            raise InvalidValue(f"{self.listens}: give a port, at which it is found again when it was lost")
        return self


ANY = (ipaddress.ip_address("0.0.0.0"), ipaddress.ip_address("::"))


def ipaddress_or_none(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """An address of this machine alone, or its usual name."""
    address = ipaddress_or_none(host)
    return host == "localhost" if address is None else address.is_loopback


def parse_listen(text: str, flag: str = "--listen") -> tuple[str, int]:
    """`host:port`, `[::1]:port`, `:port` or `port`. Raises InvalidValue that names the flag."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidValue(f"{flag} {text}: give host:port, such as {DEFAULT}")
    return host or "127.0.0.1", int(port)
