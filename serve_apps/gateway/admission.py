"""`Admission`: whether a token may do what a request asks for."""

import math

from fastapi import Request

from schemas.errors import InvalidValue
from serve_apps.gateway.refusals import Refused
from serve_apps.gateway.sources import Scope, Sources
from serve_apps.rates import Rates

_NO_TOKEN = "give the token of a source in the header `Authorization`, behind the word Bearer"


class Admission:
    """sources: those of the run. rates: how often they came to this gateway."""

    def __init__(self, sources: Sources, rates: Rates | None = None) -> None:
        self._sources, self._rates = sources, rates or Rates()

    def by_bearer(self, request: Request, scope: Scope | None = None) -> str:
        """The source of a request whose token is in its header `Authorization`. See `of`."""
        token = _bearer(request)
        said = "this token is no source's of this run: it was revoked, or is another run's" if token else _NO_TOKEN
        return self.of(request, token, scope, Refused(401, said, {"WWW-Authenticate": "Bearer"}))

    def holds(self, request: Request, name: str) -> bool:
        """Whether the token of a request that was admitted is still that source's. It is no request of its own."""
        try:
            found = self._sources.admitted(_bearer(request))
        except InvalidValue:  # nobody is admitted now
            return False
        return found is not None and found[0] == name

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


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else ""
