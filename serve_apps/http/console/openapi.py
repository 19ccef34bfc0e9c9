"""The console's OpenAPI document, made from the structs of its answers. The client's types are made from it."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from serve_apps.http.console.views import VIEWS

_ARRAY = {
    "type": "object",
    "title": "Array",
    "description": "Type and length of an array; its numbers are not in the answer.",
    "properties": {
        "dtype": {"type": "string", "description": "Type of the numbers."},
        "n": {"type": "integer", "description": "Number of elements."},
        "blob": {"type": "string", "description": "sha256 of the blob that holds them; absent if the event does."},
    },
    "required": ["dtype", "n"],
}


def schemas() -> dict[str, Any]:
    """Return the schema of every struct in an answer, by name."""
    structs = [struct for view in VIEWS for struct in view.answers]
    _, parts = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    return dict(sorted((parts | {"Array": _ARRAY}).items()))


def describe(app: FastAPI) -> None:
    """Give the app its OpenAPI document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            whole = get_openapi(title=app.title, version=app.version, routes=app.routes)
            error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
            whole["components"] = {"schemas": schemas() | {"Error": error}}
            for path in whole["paths"].values():
                path["get"]["responses"].pop("422", None)
                path["get"]["responses"]["4XX"] = {
                    "description": "What is wrong with the request.",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                }
            app.openapi_schema = whole
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
