"""The gateway's OpenAPI document, made of the structs that its answers are encoded from."""

from typing import Any

import msgspec
from fastapi import FastAPI

from schemas.inbox import PROMPTS, REWARDS, TRAJECTORIES, InboxFate, InboxPrompt
from schemas.outside import OutsideGroup, OutsideReward
from schemas.outside_sessions import OpenedSession, SessionList
from schemas.submission import Submission
from serve_apps.gateway.session_views import SealWish, SessionView, SessionWish
from serve_apps.gateway.submission import MEDIA_TYPES

_STRUCTS = (
    *(InboxPrompt, Submission, InboxFate, OutsideGroup, OutsideReward),
    *(SessionWish, OpenedSession, SealWish, SessionView, SessionList),
)
_SCHEMAS, _PARTS = msgspec.json.schema_components(_STRUCTS, ref_template="#/components/schemas/{name}")
_PROMPT, _SUBMISSION, _FATE, _GROUP, _REWARD, _WISH, _OPENED, _SEAL, _SESSION, _LIST = _SCHEMAS
_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
_REASONS = {
    401: "no token of a source",
    403: "the token is not for this; or a web page that may not",
    404: "no such run, or no such group of this source's",
    421: "Host is not a name of this gateway",
}
_BUSY = {
    429: "the run has prompts enough for now, or the source came too often: see Retry-After",
    503: "the run is not on: see Retry-After",
}
_SESSIONS = {
    400: "not JSON",
    409: "the session has ended, or the run is over",
    413: "too large",
    422: "a field that cannot be",
    503: "the run is not on: see Retry-After",
}


def _taking(summary: str, item: dict[str, Any]) -> dict[str, Any]:
    """An operation that takes items of one kind."""
    many = {"oneOf": [item, {"type": "array", "items": item}]}
    content = {MEDIA_TYPES[0]: {"schema": many}, **{one: {"schema": {"type": "string"}} for one in MEDIA_TYPES[1:]}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": content},
        "answers": {
            202: ("all were taken", _SUBMISSION),
            409: ("every key stands for something else; or, with `error` alone, the run is over", _SUBMISSION),
            422: ("some were not: each is named with its field and the reason", _SUBMISSION),
        },
        "errors": {400: "not JSON", 413: "too large", 415: "another content type", **_BUSY},
    }


def _query(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": {"type": "string"}, **more}


_OPERATIONS: dict[str, dict[str, Any]] = {
    PROMPTS: _taking("Prompts in. Each stands alone, and one that was taken is on disk", _PROMPT),
    TRAJECTORIES: _taking("Finished groups in: each a prompt with all its answers", _GROUP),
    REWARDS: _taking("Rewards of finished samples that wait for them", _REWARD),
    "group": {
        "summary": "What became of a prompt",
        "answers": {200: ("what the log says now", _FATE)},
        "errors": _BUSY,
    },
    "events": {
        "summary": "What becomes of a prompt, as server-sent events, until it is rejected or trained on",
        "answers": {200: ("an event named after the fate for each change", _FATE)},
        "errors": _BUSY,
    },
    "open_session": {
        "summary": "A rollout for an agent to make, with the keys of its session",
        "requestBody": {"required": False, "content": {MEDIA_TYPES[0]: {"schema": _WISH}}},
        "answers": {201: ("a session, which is nobody else's", _OPENED)},
        "errors": {**_SESSIONS, 429: "no rollout waits for an agent: see Retry-After"},
    },
    "sessions": {
        "summary": "The open sessions of a source, by name: to go on with them, or to seal them",
        "parameters": [
            _query("open", "only open sessions are listed: give it", allowEmptyValue=True, required=True),
            _query("after", "the name that the page before gave as `next`"),
        ],
        "answers": {200: ("a page of them, and whether the run has ended", _LIST)},
        "errors": {400: "without `open`", 503: "its log cannot be read now: see Retry-After"},
    },
    "session": {
        "summary": "What the log has of a session",
        "answers": {200: ("its turns, and those under way with their age", _SESSION)},
        "errors": _SESSIONS,
    },
    "seal_session": {
        "summary": "The end of a session, with a reward or an exit code",
        "requestBody": {"required": True, "content": {MEDIA_TYPES[0]: {"schema": _SEAL}}},
        "answers": {200: ("it is sealed; `failed` says why its rollout failed, where it did", _SESSION)},
        "errors": _SESSIONS,
    },
}


def documented(operation: str) -> dict[str, Any]:
    """Arguments of a route: its name, and what its document says."""
    told = _OPERATIONS[operation]
    media = "text/event-stream" if operation == "events" else "application/json"
    answers = {str(status): _content(text, schema, media) for status, (text, schema) in told["answers"].items()}
    errors = {str(status): _content(text, _ERROR) for status, text in {**_REASONS, **told["errors"]}.items()}
    body = {name: told[name] for name in ("requestBody", "parameters") if name in told}
    return {
        "operation_id": operation,
        "status_code": next(iter(told["answers"])),
        "summary": told["summary"],
        "openapi_extra": {**body, "responses": answers | errors, "security": [{"source": []}]},
    }


def describe(app: FastAPI) -> None:
    """Put the structs' schemas into the app's document, in the place of those that FastAPI makes of path parameters."""
    make = app.openapi
    scheme = {"type": "http", "scheme": "bearer", "description": "the token of a source"}

    def openapi() -> dict[str, Any]:
        document = make() | {"components": {"schemas": _PARTS, "securitySchemes": {"source": scheme}}}
        for operation in (one for path in document["paths"].values() for one in path.values()):
            if "422" in operation["responses"] and "requestBody" not in operation:
                del operation["responses"]["422"]  # FastAPI's own: a path parameter is a text, which cannot be wrong
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _content(text: str, schema: dict[str, Any], media: str = "application/json") -> dict[str, Any]:
    return {"description": text, "content": {media: {"schema": schema}}}
