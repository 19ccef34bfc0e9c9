"""`ConsoleView`: a page's part at the server. `AnswerSource`: query and command that give an answer."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import APIRouter, Path, Response

from schemas.doc import doc
from serve_apps.http.console.open_runs import OpenRun, OpenRuns
from slime_events.model.json_values import plain

RunName = Annotated[str, Path(description="Name of the run in the list of runs.")]
ROOT = "/api/runs/{run}"


class ConsoleView(NamedTuple):
    """A page's routes."""

    name: Annotated[str, doc("name, as in the client's registry")]
    answers: Annotated[tuple[type[msgspec.Struct], ...], doc("structs of its answers, for the OpenAPI document")]
    add: Annotated[Callable[[APIRouter, OpenRuns], None], doc("adds its routes")]


class AnswerSource(msgspec.Struct, frozen=True, kw_only=True):
    """Query and command that give the same as an answer."""

    sql: Annotated[str, doc("query that gives the same rows")]
    command: Annotated[str, doc("command that gives the same, for a shell")]
    position: Annotated[int, doc("last position of the log that it includes")]


def query_source(argument: str, sql: str, position: int) -> AnswerSource:
    """Return the source of rows of a query. argument: names the run to a command."""
    return AnswerSource(sql=sql, command=f"slime-events query {argument} {shlex.quote(sql)}", position=position)


def documented(struct: type[msgspec.Struct], summary: str) -> dict[str, Any]:
    """Return arguments of a route whose answer is a struct."""
    schema = {"$ref": f"#/components/schemas/{struct.__name__}"}
    answer = {"description": struct.__name__, "content": {"application/json": {"schema": schema}}}
    return {"summary": summary, "response_class": Response, "openapi_extra": {"responses": {"200": answer}}}


def answered(struct: msgspec.Struct) -> Response:
    """Return a struct as JSON, its arrays as type and length."""
    return Response(msgspec.json.encode(plain(struct)), media_type="application/json")


def show_source(opened: OpenRun, what: str, sql: str, position: int) -> AnswerSource:
    """Return the source of a view that `show` prints. what: its arguments after the run, quoted for a shell."""
    return command_source(opened, "show", what, sql, position)


def command_source(opened: OpenRun, command: str, what: str, sql: str, position: int) -> AnswerSource:
    """Return the source of a view that another command prints. what: its arguments after the run, quoted."""
    return AnswerSource(sql=sql, command=f"slime-events {command} {opened.argument} {what}", position=position)
