"""The gateway that is a role of the run."""

from typing import Annotated

from msgspec import field

from slime_events.core.config.base import Settings, doc


class RunGatewaySettings(Settings, frozen=True, kw_only=True):
    """HTTP for producers, as a role of the run: `slime-events gateway` without a process to look after."""

    gateway: Annotated[str | None, doc("answer HTTP at HOST:PORT; alone: at 127.0.0.1:8500; off: do not")] = None
    gateway_tls_cert: Annotated[str | None, doc("PEM certificate: answer by HTTPS")] = None
    gateway_tls_key: Annotated[str | None, doc("PEM key of gateway-tls-cert")] = None
    gateway_insecure: Annotated[bool, doc("answer beyond this machine without TLS, behind something that does it")] = (
        False
    )
    gateway_allow_origin: Annotated[list[str], doc("web pages of these origins may use it")] = field(
        default_factory=list
    )
    gateway_host_name: Annotated[list[str], doc("further names that it is reached by")] = field(default_factory=list)

    @property
    def listens(self) -> str | None:
        """HOST:PORT; None where the run has no gateway of its own."""
        return None if self.gateway in (None, OFF) else self.gateway


DEFAULT = "127.0.0.1:8500"
OFF = "off"
"""For a run that goes on, or a branch, whose run had one."""
