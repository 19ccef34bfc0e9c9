"""`console_app`: the console's page and its routes, which only read.

GET /                          the page; at every path that is not below, the client shows the view of that URL
GET /assets/...                its script and style
GET /api/runs                  the runs
GET /api/runs/{run}/...        the views of one run: see `views/`
GET /api/compare               two runs
GET /openapi.json              all routes and the structs of their answers
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from schemas.errors import BadQuery, ConfigError
from serve_apps.http.console.guard import Guard
from serve_apps.http.console.open_runs import OpenRuns
from serve_apps.http.console.openapi import describe
from serve_apps.http.console.pages import add_pages
from serve_apps.http.console.run_source import RunSource
from serve_apps.http.console.views import VIEWS
from serve_apps.http.gateway.admission import Admission
from serve_apps.http.gateway.refusals import answer, error_answers
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Scope, Tokens


def console_app(source: RunSource, settings: GatewaySettings, sources: Tokens | None = None) -> FastAPI:
    """Return the app. sources: who may read, each with a token that has the right `view`; None: no token is needed."""
    runs = OpenRuns(source)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with runs:
            yield

    app = FastAPI(title="slime-events console", version="1", docs_url=None, redoc_url=None, lifespan=lifespan)
    admission = None if sources is None else Admission(sources)

    def admitted(request: Request) -> None:
        if admission is not None:
            admission.by_bearer(request, Scope.VIEW)

    router = APIRouter(dependencies=[Depends(admitted)])
    for view in VIEWS:
        view.add(router, runs)
    app.include_router(router)
    add_pages(app)
    describe(app)
    app.add_middleware(Guard, settings=settings)
    error_answers(app)

    @app.exception_handler(BadQuery)
    @app.exception_handler(ConfigError)
    async def invalid(_: Request, error: Exception) -> Response:
        return answer(400, str(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return answer(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")

    return app
