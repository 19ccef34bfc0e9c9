"""The gateway's OpenAPI document, generated from the structs of its requests and answers."""

from typing import Annotated, Any, TypedDict

import msgspec
from fastapi import FastAPI, Path

from schemas.inbox import PROMPTS, REWARDS, TRAJECTORIES, InboxFate, InboxPrompt
from schemas.outside import OutsideGroup, OutsideReward
from schemas.outside_sessions import OpenedSession, SessionList
from schemas.submission import Submission
from serve_apps.http.gateway.session_views import SealWish, SessionView, SessionWish
from serve_apps.http.gateway.submission import MEDIA_TYPES

_STRUCTS = (
    *(InboxPrompt, Submission, InboxFate, OutsideGroup, OutsideReward),
    *(SessionWish, OpenedSession, SealWish, SessionView, SessionList),
)
_SCHEMAS, _PARTS = msgspec.json.schema_components(_STRUCTS, ref_template="#/components/schemas/{name}")
_PROMPT, _SUBMISSION, _FATE, _GROUP, _REWARD, _WISH, _OPENED, _SEAL, _SESSION, _LIST = _SCHEMAS
_ERROR = {
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "The problem, its place in the request, and the remedy."}
    },
    "required": ["error"],
}
_REASONS = {
    401: "No valid token of a source.",
    403: "The token's scope does not allow this, or the web page's origin is not allowed.",
    404: "The run does not exist, or this source has no such group.",
    421: "The Host header is not a name of this gateway.",
}
_BUSY = {
    429: "Too many prompts wait, or the source sends too many requests. Retry after `Retry-After`.",
    503: "The run is off. Retry after `Retry-After`.",
}
_SESSIONS = {
    400: "The body is not JSON.",
    409: "The session has ended, or the run is over.",
    413: "The body is too large.",
    422: "A field is not valid.",
    503: "The run is off. Retry after `Retry-After`.",
}
RunName = Annotated[str, Path(description="Name of the run.")]


def _submitting(summary: str, item: dict[str, Any]) -> dict[str, Any]:
    """Return an operation that submits items of one kind."""
    many = {"oneOf": [item, {"type": "array", "items": item}]}
    lines = {media: {"schema": {"type": "string"}} for media in MEDIA_TYPES[1:]}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {MEDIA_TYPES[0]: {"schema": many}, **lines}},
        "answers": {
            202: ("All items are accepted.", _SUBMISSION),
            409: (
                "Every key is already in use with other content. If the body has only `error`: the run is over.",
                _SUBMISSION,
            ),
            422: ("Some items are refused; `errors` has the field and the reason of each.", _SUBMISSION),
        },
        "errors": {
            400: "The body is not JSON.",
            413: "The body is too large.",
            415: "The content type is not supported.",
            **_BUSY,
        },
    }


def _query(name: str, text: str, **more: object) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": {"type": "string"}, **more}


_OPERATIONS: dict[str, dict[str, Any]] = {
    PROMPTS: _submitting(
        "Submit prompts. Each is accepted or refused on its own; accepted prompts are on disk", _PROMPT
    ),
    TRAJECTORIES: _submitting("Submit finished groups: each is a prompt with all its answers", _GROUP),
    REWARDS: _submitting("Submit rewards of finished samples that wait for them", _REWARD),
    "group": {
        "summary": "Get the state of a group",
        "answers": {200: ("Current state in the log.", _FATE)},
        "errors": _BUSY,
    },
    "events": {
        "summary": "Follow the state of a group as server-sent events, until it is rejected or trained on",
        "answers": {200: ("An event for each change, named after the fate.", _FATE)},
        "errors": _BUSY,
    },
    "open_session": {
        "summary": "Open a session for a rollout that waits for an agent, and get its keys",
        "requestBody": {"required": False, "content": {MEDIA_TYPES[0]: {"schema": _WISH}}},
        "answers": {201: ("A session. Only this source has it.", _OPENED)},
        "errors": {**_SESSIONS, 429: "No rollout waits for an agent. Retry after `Retry-After`."},
    },
    "sessions": {
        "summary": "List the open sessions of a source, by name, to continue or to seal them",
        "parameters": [
            _query("open", "Required: only open sessions can be listed.", allowEmptyValue=True, required=True),
            _query("after", "Value of `next` on the page before."),
        ],
        "answers": {200: ("A page of sessions, and whether the run has ended.", _LIST)},
        "errors": {400: "`open` is missing.", 503: "The log cannot be read now. Retry after `Retry-After`."},
    },
    "session": {
        "summary": "Get a session from the log",
        "answers": {200: ("Recorded turns, and turns in progress with their age.", _SESSION)},
        "errors": _SESSIONS,
    },
    "seal_session": {
        "summary": "End a session with a reward or an exit code",
        "requestBody": {"required": True, "content": {MEDIA_TYPES[0]: {"schema": _SEAL}}},
        "answers": {200: ("The session is sealed. If its rollout failed, `failed` has the reason.", _SESSION)},
        "errors": _SESSIONS,
    },
}


class RouteArguments(TypedDict):
    """Arguments of a FastAPI route."""

    operation_id: str
    status_code: int
    summary: str
    openapi_extra: dict[str, Any]


def documented(name: str) -> RouteArguments:
    """Return the arguments of a route for its operation's documentation."""
    operation = _OPERATIONS[name]
    media = "text/event-stream" if name == "events" else "application/json"
    answers = {str(status): _content(text, schema, media) for status, (text, schema) in operation["answers"].items()}
    errors = {str(status): _content(text, _ERROR) for status, text in {**_REASONS, **operation["errors"]}.items()}
    body: dict[str, Any] = {key: operation[key] for key in ("requestBody", "parameters") if key in operation}
    return {
        "operation_id": name,
        "status_code": next(iter(operation["answers"])),
        "summary": operation["summary"],
        "openapi_extra": {**body, "responses": answers | errors, "security": [{"source": []}]},
    }


def describe(app: FastAPI) -> None:
    """Replace FastAPI's components in the app's document by the schemas of the structs."""
    make = app.openapi
    scheme = {"type": "http", "scheme": "bearer", "description": "Token of a source."}

    def openapi() -> dict[str, Any]:
        document = make() | {"components": {"schemas": _PARTS, "securitySchemes": {"source": scheme}}}
        for operation in (operation for path in document["paths"].values() for operation in path.values()):
            if "422" in operation["responses"] and "requestBody" not in operation:
                del operation["responses"]["422"]  # FastAPI's own: a path parameter is a string and always valid
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _content(text: str, schema: dict[str, Any], media: str = "application/json") -> dict[str, Any]:
    return {"description": text, "content": {media: {"schema": schema}}}
