"""`Admission`: checks whether a request's token allows it."""

import math

from fastapi import Request

from schemas.errors import InvalidValue
from serve_apps.http.gateway.refusals import Refused
from serve_apps.http.gateway.sources import Scope, Tokens
from serve_apps.rates import Rates

_NO_TOKEN = "no token: send the token of a source in the header `Authorization: Bearer <token>`"
_INVALID = "the token is not valid: it was revoked, or it is for another run. Ask the run's owner for a new token"


class Admission:
    """Checks tokens and rates. sources: who may send requests. rates: counts requests at this gateway."""

    def __init__(self, sources: Tokens, rates: Rates | None = None) -> None:
        self._sources, self._rates = sources, rates or Rates()

    def by_bearer(self, request: Request, scope: Scope | None = None) -> str:
        """Return the source of a request by its header `Authorization`. See `of`."""
        token = _bearer(request)
        invalid = Refused(401, _INVALID if token else _NO_TOKEN, {"WWW-Authenticate": "Bearer"})
        return self.of(request, token, scope, invalid)

    def holds(self, request: Request, name: str) -> bool:
        """Return whether the token of an admitted request is still valid. The check does not count as a request."""
        try:
            admitted = self._sources.admitted(_bearer(request))
        except InvalidValue:  # the file of sources is damaged: no token is valid
            return False
        return admitted is not None and admitted[0] == name

    def of(self, request: Request, token: str, scope: Scope | None, invalid: Refused) -> str:
        """Return the source of a token, and note it for the refusal log.

        scope: right that the request needs. invalid: raised for a token that is not valid. Raises Refused: `invalid`,
        403 if the source does not have the right, 429 if it sends too many requests.
        """
        admitted = self._sources.admitted(token)
        if admitted is None:
            raise invalid
        name, source = admitted
        request.state.who = name
        if scope is not None and not source.allows(scope):
            raise Refused(403, f"the token of {name} allows {source.limits}, but this request needs {scope}")
        if wait_s := self._rates.wait_s(name, source.per_minute):
            seconds = math.ceil(wait_s)
            message = f"{name} may make {source.per_minute:,} requests a minute: retry in {seconds} s"
            raise Refused(429, message, {"Retry-After": str(seconds)})
        return name


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else ""
