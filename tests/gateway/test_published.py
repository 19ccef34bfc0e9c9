"""Test the gateway's documents: each operation, its answers, and the messages over NATS."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serve_apps.http.gateway.agents import AgentAccess, SessionKeys
from serve_apps.http.gateway.app import gateway_app
from serve_apps.http.gateway.asyncapi import asyncapi
from serve_apps.http.gateway.settings import GatewaySettings

ALWAYS = {401, 403, 404, 421}
BUSY, TAKING, SESSIONS = {429, 503}, {202, 400, 409, 413, 415, 422}, {400, 409, 413, 422, 503}
JSON, LINES, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"
RUN, SESSION = "/v1/runs/{run_name}", "/v1/sessions/{session}"
OPERATIONS: dict[str, tuple[str, str, set[int]]] = {
    "prompts": ("post", f"{RUN}/prompts", TAKING | BUSY),
    "trajectories": ("post", f"{RUN}/trajectories", TAKING | BUSY),
    "rewards": ("post", f"{RUN}/rewards", TAKING | BUSY),
    "group": ("get", f"{RUN}/groups/{{group}}", {200} | BUSY),
    "events": ("get", f"{RUN}/groups/{{group}}/events", {200} | BUSY),
    "open_session": ("post", f"{RUN}/sessions", {201, 429} | SESSIONS),
    "sessions": ("get", f"{RUN}/sessions", {200, 400, 503}),
    "session": ("get", SESSION, {200} | SESSIONS - {422}),
    "seal_session": ("post", f"{SESSION}/seal", {200} | SESSIONS),
}
ITEMS = {"prompts": "InboxPrompt", "trajectories": "OutsideGroup", "rewards": "OutsideReward"}
BODIES = {"open_session": (False, "SessionWish"), "seal_session": (True, "SealWish")}
ANSWERS = {"sessions": "SessionList", "group": "InboxFate", "events": "InboxFate", "open_session": "OpenedSession"}
ANSWERS |= dict.fromkeys(ITEMS, "Submission") | dict.fromkeys(("session", "seal_session"), "SessionView")


@pytest.fixture(scope="module")
def document() -> Any:
    run: Any = type("Run", (), {"name": "sim", "log": None})
    nobody: Any = None
    app = gateway_app(run, nobody, GatewaySettings(), AgentAccess(nobody, SessionKeys(b"s")))
    return app.openapi()


def schema_of(content: Any, media: str = JSON) -> Any:
    return content["content"][media]["schema"]


def named(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def test_every_operation_is_there_and_nothing_else(document: Any) -> None:
    operations = {
        method_["operationId"]: (method, path, {int(status) for status in method_["responses"]})
        for path, methods in document["paths"].items()
        for method, method_ in methods.items()
    }
    assert operations == {name: (method, path, codes | ALWAYS) for name, (method, path, codes) in OPERATIONS.items()}


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_answer_has_its_form(document: Any, name: str) -> None:
    method, path, _ = OPERATIONS[name]
    operation = document["paths"][path][method]
    assert operation["security"] == [{"source": []}]
    for status, response in operation["responses"].items():
        assert response["description"]
        if int(status) < 300 or (status in ("409", "422") and name in ITEMS):
            assert schema_of(response, EVENTS if name == "events" else JSON) == named(ANSWERS[name])
        else:
            assert schema_of(response)["required"] == ["error"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_request_has_its_form(document: Any, name: str) -> None:
    method, path, _ = OPERATIONS[name]
    body = document["paths"][path][method].get("requestBody")
    if name in ITEMS:
        item = named(ITEMS[name])
        assert body["required"] is True
        assert schema_of(body) == {"oneOf": [item, {"type": "array", "items": item}]}
        assert schema_of(body, LINES) == schema_of(body, "application/jsonl") == {"type": "string"}
        assert set(body["content"]) == {JSON, LINES, "application/jsonl"}
    elif name in BODIES:
        required, item_name = BODIES[name]
        assert (body["required"], set(body["content"])) == (required, {JSON})
        assert schema_of(body) == named(item_name)
    else:
        assert body is None


def test_open_sessions_are_asked_for_page_by_page(document: Any) -> None:
    parameters = document["paths"][f"{RUN}/sessions"]["get"]["parameters"]
    parameters_ = {
        parameter["name"]: (parameter.get("required", False), parameter.get("allowEmptyValue", False))
        for parameter in parameters
    }
    assert parameters_ == {"run_name": (True, False), "open": (True, True), "after": (False, False)}
    assert all(parameter["schema"]["type"] == "string" for parameter in parameters)


def test_a_token_is_a_bearer_s(document: Any) -> None:
    scheme = document["components"]["securitySchemes"]["source"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")


def test_messages_over_nats_are_one_or_many_with_an_example_and_a_reply() -> None:
    document = asyncapi("sim")
    messages = document["components"]["messages"]
    for name, item in ITEMS.items():
        assert messages[name]["payload"] == {"oneOf": [named(item), {"type": "array", "items": named(item)}]}
        assert messages[f"{name}-reply"]["payload"] == named("InboxReply")
    assert messages["groups"]["payload"] == named("InboxQuestion")
    assert messages["groups-reply"]["payload"] == named("InboxFates")
    assert messages["fates"]["payload"] == named("InboxFate")
    for name in (*ITEMS, "groups"):
        assert messages[name]["examples"]
        assert messages[name]["summary"]
        operation = document["operations"][name]
        assert (operation["action"], operation["channel"]) == ("send", {"$ref": f"#/channels/{name}"})
        assert operation["reply"]["channel"] == {"$ref": "#/channels/replies"}
        (reply,) = operation["reply"]["messages"]
        assert reply == {"$ref": f"#/channels/replies/messages/{name}-reply"}
        assert document["channels"][name]["messages"] == {name: {"$ref": f"#/components/messages/{name}"}}
    assert set(document["channels"]["replies"]["messages"]) == {f"{name}-reply" for name in (*ITEMS, "groups")}
    assert document["operations"]["fates"] == {"action": "receive", "channel": {"$ref": "#/channels/fates"}}
    assert document["channels"]["fates"]["messages"] == {"fates": {"$ref": "#/components/messages/fates"}}
    assert (document["asyncapi"], document["defaultContentType"]) == ("3.0.0", JSON)


def _fields(document: Any) -> dict[str, Any]:
    """Each field, parameter and answer of the document by its place."""
    fields = {
        f"{name}.{field}": schema
        for name, part in document["components"]["schemas"].items()
        for field, schema in part.get("properties", {}).items()
    }
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        name = operation["operationId"]
        fields |= {f"{name} {parameter['name']}": parameter for parameter in operation.get("parameters", ())}
        for status, answer in operation["responses"].items():
            fields[f"{name} {status}"] = answer
            for content in answer["content"].values():
                fields |= {
                    f"{name} {status} {at}": schema for at, schema in content["schema"].get("properties", {}).items()
                }
    return fields


def test_every_field_and_parameter_has_a_description(document: Any) -> None:
    fields = _fields(document)
    assert {"SealWish.exit_code", "SessionView.failed", "open_session run_name", "prompts 401 error"} <= fields.keys()
    assert [place for place, field in fields.items() if not field.get("description", "").strip()] == []
    assert all(operation["summary"] for path in document["paths"].values() for operation in path.values())


def test_a_field_without_a_description_is_found() -> None:
    class Bare(msgspec.Struct):
        field: int

    _, parts = msgspec.json.schema_components([Bare])
    bare = {"components": {"schemas": parts}, "paths": {}}
    assert [place for place, field in _fields(bare).items() if not field.get("description")] == ["Bare.field"]


def test_messages_over_nats_have_a_description_of_every_field() -> None:
    fields = _fields({"components": {"schemas": asyncapi("sim")["components"]["schemas"]}, "paths": {}})
    assert [place for place, field in fields.items() if not field.get("description", "").strip()] == []
