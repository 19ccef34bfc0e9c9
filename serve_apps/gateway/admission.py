"""`Admission`: whether a token may do what a request asks for."""

import math

from fastapi import Request

from serve_apps.gateway.refusals import Refused
from serve_apps.gateway.sources import Scope, Sources
from serve_apps.rates import Rates


class Admission:
    """sources: those of the run. rates: how often they came to this gateway."""

    def __init__(self, sources: Sources, rates: Rates | None = None) -> None:
        self._sources, self._rates = sources, rates or Rates()

    def by_bearer(self, request: Request, scope: Scope | None = None) -> str:
        """The source of a request whose token is in its header `Authorization`. See `of`."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        wanted = Refused(
            401, "give the token of a source as `Authorization: Bearer <token>`", {"WWW-Authenticate": "Bearer"}
        )
        return self.of(request, token if scheme.lower() == "bearer" else "", scope, wanted)

    def of(self, request: Request, token: str, scope: Scope | None, wanted: Refused) -> str:
        """The source of a token, noted for the log of refusals. scope: that the request needs, if any. wanted: what one
        without a token is told. Raises Refused: that, 403 where the source may do other things alone, 429 where it
        came too often.
        """
        found = self._sources.admitted(token)
        if found is None:
            raise wanted
        name, source = found
        request.state.who = name
        if scope is not None and not source.allows(scope):
            raise Refused(403, f"the token of {name} is for {source.limits}, and not for {scope}")
        if wait_s := self._rates.wait_s(name, source.per_minute):
            again = {"Retry-After": str(math.ceil(wait_s))}
            raise Refused(429, f"{name} may make {source.per_minute:,} requests a minute: come again later", again)
        return name
