"""Settings of the gateway that runs as a role of the run."""

from typing import Annotated

from msgspec import field

from slime_events.core.config.base import Settings, doc
from slime_events.core.config.rules import Later, unused_without


class RunGatewaySettings(Settings, frozen=True, kw_only=True):
    """HTTP for producers and agents, as a role of the run instead of a separate `slime-events gateway` process."""

    LATER = Settings.LATER | Later.RESUME

    gateway: Annotated[
        str | None, doc("serve HTTP at HOST:PORT; without a value: at 127.0.0.1:8500; off: no gateway")
    ] = None
    gateway_tls_cert: Annotated[str | None, doc("PEM certificate; enables HTTPS", unused_without("gateway"))] = None
    gateway_tls_key: Annotated[str | None, doc("PEM key of gateway-tls-cert", unused_without("gateway"))] = None
    gateway_insecure: Annotated[
        bool, doc("serve other machines without TLS, behind a proxy that terminates TLS", unused_without("gateway"))
    ] = False
    gateway_allow_origin: Annotated[
        list[str], doc("origins of web pages that may call the gateway", unused_without("gateway"))
    ] = field(default_factory=list)
    gateway_host_name: Annotated[list[str], doc("further host names of the gateway", unused_without("gateway"))] = (
        field(default_factory=list)
    )

    @property
    def listens(self) -> str | None:
        """HOST:PORT of the run's gateway; None: the run has none."""
        return None if self.gateway in (None, OFF) else self.gateway


DEFAULT = "127.0.0.1:8500"
OFF = "off"
"""Turns the gateway off in a resumed run or a branch whose first run had one."""
