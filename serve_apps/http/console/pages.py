"""The client's files: the page itself, its script and its style, built into `dist`."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from fastapi import FastAPI, Response

from serve_apps.http.gateway.refusals import Refused

DIST = Path(__file__).parent / "dist"
INDEX = "index.html"


def add_pages(app: FastAPI, dist: Path = DIST) -> None:
    """Serve the client: its files below /assets/, and the page at every other path outside of /api/."""
    files = {path.name: path.read_bytes() for path in sorted(dist.iterdir()) if path.is_file()}

    @app.get("/assets/{name:path}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in files or name == INDEX:
            raise Refused(404, f"there is no file {name}")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(files[name], media_type=kind, headers={"Cache-Control": "no-cache"})

    @app.get("/api/{path:path}", include_in_schema=False)
    async def unknown(path: str) -> Response:
        raise Refused(404, f"there is no route /api/{path}: see /openapi.json")

    @app.get("/{path:path}", include_in_schema=False)
    async def page(path: str) -> Response:
        return Response(files[INDEX], media_type="text/html", headers={"Cache-Control": "no-cache"})
