"""`GatewaySettings`: address, TLS, limits and allowed clients of a gateway."""

from __future__ import annotations

import ipaddress
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import InvalidValue
from serve_apps.http.gateway.deadlines import Deadlines
from slime_events.core.config.gateway import DEFAULT, RunGatewaySettings

MB = 1024 * 1024


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a gateway. The time of an answer is not limited."""

    host: Annotated[str, doc("address or name to listen on")] = "127.0.0.1"
    port: int = 8500
    tls_cert: Annotated[str, doc("certificate file; empty: no TLS")] = ""
    tls_key: Annotated[str, doc("file of the certificate's key")] = ""
    origins: Annotated[tuple[str, ...], doc("origins of web pages that may use the gateway")] = ()
    hosts: Annotated[tuple[str, ...], doc("names that Host may have besides `host`")] = ()
    max_body: Annotated[int, doc("limit of a request [bytes]; NDJSON is processed line by line")] = 64 * MB
    max_connections: Annotated[
        int, doc("limit of requests in progress, lower if the process may open fewer files; further ones get 503")
    ] = 2000
    address_share: Annotated[float, doc("part of `max_connections` that one address may have, 0 to 1")] = 0.75
    head_s: Annotated[float, doc("seconds for the head of a request, and for a TLS handshake")] = 10.0
    body_s: Annotated[float, doc("seconds in which `body_bytes` of a body, or its end, must arrive")] = 10.0
    body_bytes: Annotated[int, doc("bytes that must move within `body_s` or `write_s`")] = 32 * 1024
    write_s: Annotated[float, doc("seconds in which a client must read `body_bytes` of an answer")] = 30.0
    keep_alive_s: Annotated[int, doc("seconds until the next request on a connection")] = 15
    streams: Annotated[int, doc("most streams of one source at once")] = 200
    poll_s: Annotated[float, doc("seconds between two reads of the log for a stream")] = 0.5
    insecure: Annotated[bool, doc("allow connections from other machines without TLS")] = False
    nats_creds: Annotated[
        str, doc("credentials file, for a run on the user's own NATS server; empty: those that the run started with")
    ] = ""
    role: Annotated[bool, doc("the gateway is a role of its run, whose flags differ from those of the command")] = False

    @classmethod
    def of_run(cls, run: RunGatewaySettings, *, role: bool = True, nats_creds: str = "") -> GatewaySettings:
        """Return the settings from a run's flags, which the command has too. Raises InvalidValue."""
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
        """Limits for slow clients."""
        return Deadlines(self.head_s, self.body_s, self.body_bytes, self.write_s)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def names(self) -> frozenset[str]:
        """Values that Host may have, without a port."""
        own = {"localhost", "127.0.0.1", "::1"} if self.is_loopback else {self.host}
        return frozenset({*own, *self.hosts})

    @property
    def own_url(self) -> str:
        """URL for clients on this machine."""
        host = self.hosts[0] if self.hosts and not self.is_loopback else self.host
        return f"{'https' if self.tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def flag(self, name: str) -> str:
        """Return the flag of a setting. name: `listen`, or the name that both the command and the role use."""
        if name == "listen":
            return "--gateway" if self.role else "--listen"
        return f"--gateway-{name}" if self.role else f"--{name}"

    @property
    def listens(self) -> str:
        """The listen flag with its value."""
        return f"{self.flag('listen')} {self.host}:{self.port}"

    def checked(self) -> GatewaySettings:
        """Return these settings. Raises InvalidValue for unencrypted tokens on a network, and for missing flags."""
        cert, key, name = map(self.flag, ("tls-cert", "tls-key", "host-name"))
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidValue(f"{cert} and {key} need each other: set both")
        if not (self.is_loopback or self.tls_cert or self.insecure):
            raise InvalidValue(
                f"{self.listens}: other machines can connect, and tokens would cross the network unencrypted. Set "
                f"{cert} and {key}, or {self.flag('insecure')} if a proxy in front of the gateway does TLS"
            )
        if not (self.is_loopback or self.hosts) and ipaddress_or_none(self.host) in ANY:
            raise InvalidValue(f"{self.listens} needs a host name: set the name that clients use with {name}")
        if self.role and not self.port:
            raise InvalidValue(f"{self.listens}: set a port, so that clients find the gateway after a restart")
        return self


ANY = (ipaddress.ip_address("0.0.0.0"), ipaddress.ip_address("::"))


def ipaddress_or_none(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or `localhost`."""
    address = ipaddress_or_none(host)
    return host == "localhost" if address is None else address.is_loopback


def parse_listen(text: str, flag: str = "--listen") -> tuple[str, int]:
    """Parse `host:port`, `[::1]:port`, `:port` or `port`. Raises InvalidValue that names the flag."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidValue(f"{flag} {text}: must be host:port, such as {DEFAULT}")
    return host or "127.0.0.1", int(port)
