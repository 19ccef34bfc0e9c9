"""`GatewaySettings`: where a gateway listens, and whom it answers."""

import ipaddress

import msgspec

from schemas.errors import InvalidValue

DEFAULT = "127.0.0.1:8500"
MB = 1024 * 1024


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """origins: of web pages that may use it. hosts: further names that it answers by (`Host`), beside its address.
    max_body: bytes of a request; lines of NDJSON are taken as they come, up to this. poll_s: between two looks at the
    log for somebody who follows a group.
    """

    host: str = "127.0.0.1"
    port: int = 8500
    tls_cert: str = ""
    tls_key: str = ""
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_body: int = 64 * MB
    poll_s: float = 0.5

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    @property
    def names(self) -> frozenset[str]:
        """What `Host` may say, without a port."""
        own = {"localhost", "127.0.0.1", "::1"} if self.is_loopback else {self.host}
        return frozenset({*own, *self.hosts})

    def check(self, *, insecure: bool) -> None:
        """Raises InvalidValue where tokens would cross a network in clear text, or TLS lacks a part."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidValue("--tls-cert and --tls-key: give both, the certificate and its key")
        if not (self.is_loopback or self.tls_cert or insecure):
            raise InvalidValue(
                f"--listen {self.host}:{self.port} is beyond this machine, and tokens would cross the network in clear "
                "text: give --tls-cert and --tls-key, or --insecure where something in front of it does TLS"
            )
        if not (self.is_loopback or self.hosts) and ipaddress_or_none(self.host) in ANY:
            raise InvalidValue(f"--listen {self.host} is no name: give that by which clients reach it with --host-name")


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


def parse_listen(text: str) -> tuple[str, int]:
    """`host:port`, `[::1]:port`, `:port` or `port`. Raises InvalidValue."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidValue(f"--listen {text}: give host:port, such as {DEFAULT}")
    return host or "127.0.0.1", int(port)
