"""B4: half of a character, control characters and a megabyte, in every text of every dialect and route."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.harness.attacks.attack import REFUSED, TAKEN, Answer, Attack, answer_of, expects
from tests.harness.attacks.ids import BASE, CHAT, GENERATE, MESSAGES, RESPONSES
from tests.harness.attacks.scene import Scene, turned

EITHER = REFUSED | TAKEN
TEXTS: tuple[tuple[str, str], ...] = (
    ("half a character", "a\ud83d"),
    ("the other half", "\udc80b"),
    ("control characters", "\x00\x07\x1b[31m\x7f\x9b\u2028\ufeff"),
    ("a megabyte", "x" * 1_000_000),
)
USER = {"role": "user", "content": "1+1"}


def _call(text: str, **fields: Any) -> list[dict[str, Any]]:
    """Return a chat with a tool call. fields: its name, arguments or id."""
    call = {"name": "add", "arguments": "{}", "id": "c1"} | fields
    function = {"name": call["name"], "arguments": call["arguments"]}
    answered = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call["id"], "type": "function", "function": function}],
    }
    return [USER, answered, {"role": "tool", "tool_call_id": call["id"], "content": text}]


A_TEXT = {"type": "string"}


def _properties(text: str) -> dict[str, Any]:
    return _tool(parameters={"type": "object", "properties": {text[:40]: A_TEXT}})


def _tool(**fields: Any) -> dict[str, Any]:
    function = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}} | fields
    return {"tools": [{"type": "function", "function": function}]}


def _use(**fields: Any) -> list[dict[str, Any]]:
    """Return a chat with a call in Anthropic's format."""
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {}} | fields
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "2"}
    return [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


Place = Callable[[str], dict[str, Any]]
PLACES: tuple[tuple[str, str, Place], ...] = (
    ("message", CHAT, lambda text: {"messages": [{"role": "user", "content": text}]}),
    ("part", CHAT, lambda text: {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}),
    ("role", CHAT, lambda text: {"messages": [{"role": text, "content": "a"}]}),
    ("name", CHAT, lambda text: {"messages": [USER | {"name": text}]}),
    ("model", CHAT, lambda text: {"model": text}),
    ("user", CHAT, lambda text: {"user": text}),
    ("metadata", CHAT, lambda text: {"metadata": {text[:40]: text}}),
    ("stop", CHAT, lambda text: {"stop": [text]}),
    ("tool result", CHAT, lambda text: {"messages": _call(text)}),
    ("call arguments", CHAT, lambda text: {"messages": _call("2", arguments=json.dumps({"x": text}))}),
    ("call arguments, no JSON", CHAT, lambda text: {"messages": _call("2", arguments=text)}),
    ("call arguments, an object", CHAT, lambda text: {"messages": _call("2", arguments={text[:40]: text})}),
    ("call id", CHAT, lambda text: {"messages": _call("2", id=text)}),
    ("call name", CHAT, lambda text: {"messages": _call("2", name=text)}),
    ("tool name", CHAT, lambda text: _tool(name=text)),
    ("tool description", CHAT, lambda text: _tool(description=text)),
    ("tool parameters", CHAT, _properties),
    ("template kwargs", CHAT, lambda text: {"chat_template_kwargs": {text[:40]: text}}),
    ("an unknown field", CHAT, lambda text: {text[:40]: 1}),
    ("message", MESSAGES, lambda text: {"messages": [{"role": "user", "content": text}]}),
    ("system", MESSAGES, lambda text: {"system": text}),
    ("call input", MESSAGES, lambda text: {"messages": _use(input={text[:40]: text})}),
    ("call id", MESSAGES, lambda text: {"messages": _use(id=text)}),
    ("user_id", MESSAGES, lambda text: {"metadata": {"user_id": text}}),
    ("stop_sequences", MESSAGES, lambda text: {"stop_sequences": [text]}),
    ("input", RESPONSES, lambda text: {"input": text}),
    ("instructions", RESPONSES, lambda text: {"instructions": text}),
    ("metadata", RESPONSES, lambda text: {"metadata": {"a": text}}),
    ("call arguments", RESPONSES, lambda text: {"input": [
        USER, {"type": "function_call", "call_id": "c1", "name": "add", "arguments": json.dumps({"x": text})},
        {"type": "function_call_output", "call_id": "c1", "output": text}]}),
    ("text", GENERATE, lambda text: {"text": text}),
    ("rid", GENERATE, lambda text: {"rid": text}),
    ("stop", GENERATE, lambda text: {"sampling_params": {"max_new_tokens": 4, "stop": [text]}}),
    ("stop_regex", GENERATE, lambda text: {"sampling_params": {"max_new_tokens": 4, "stop_regex": [text]}}),
)  # fmt: skip
SENT: tuple[tuple[str, Callable[[str], dict[str, Any]]], ...] = (
    ("prompt", lambda text: {"prompt": text}),
    ("key", lambda text: {"key": text, "prompt": "1+1"}),
    ("label", lambda text: {"prompt": "1+1", "label": text}),
    ("label of a list", lambda text: {"prompt": "1+1", "label": [text, {"a": text}]}),
    ("metadata", lambda text: {"prompt": "1+1", "metadata": {text[:40]: text}}),
    ("rm_type", lambda text: {"prompt": "1+1", "metadata": {"rm_type": text}}),
    ("message", lambda text: {"prompt": [{"role": "user", "content": text}]}),
    ("an unknown field", lambda text: {"prompt": "1+1", text[:40]: 1}),
)


async def _turn(scene: Scene, path: str, fields: dict[str, Any]) -> Answer:
    return await turned(scene, path, BASE[path] | fields, EITHER)


async def _prompt(scene: Scene, body: dict[str, Any]) -> Answer:
    return answer_of(await scene.post("prompts", body), EITHER)


async def _nats(scene: Scene, body: dict[str, Any]) -> Answer:
    reply = await scene.nats(json.dumps(body).encode())
    return Answer(reply[:90], reply.startswith("{"))


async def _seal(scene: Scene, text: str) -> Answer:
    """Seal a session with a text in its metadata; other kinds cover what the run's user sees of it."""
    session = await scene.session()
    control = {"authorization": f"Bearer {session.control_key}", "content-type": "application/json"}
    body = json.dumps({"reward": 0.0, "metadata": {text[:40]: text}}).encode()
    answer = await scene.http.post(f"/v1/sessions/{session.name}/seal", content=body, headers=control)
    return answer_of(answer, EITHER)


async def _seal_reward(scene: Scene, reward: str) -> Answer:
    session = await scene.session()
    control = {"authorization": f"Bearer {session.control_key}", "content-type": "application/json"}
    body = f'{{"reward": {reward}}}'.encode()
    answer = await scene.http.post(f"/v1/sessions/{session.name}/seal", content=body, headers=control)
    return answer_of(answer, REFUSED)


async def _header(scene: Scene, name: str, value: bytes) -> Answer:
    session = await scene.session()
    url = session.base_url.removesuffix("/v1") + CHAT
    headers = [(b"content-type", b"application/json"), (name.encode(), value)]
    body = json.dumps(BASE[CHAT]).encode()
    return answer_of(await scene.http.post(url, content=body, headers=headers), EITHER)


ATTACKS: list[Attack] = [
    *(
        Attack(f"{kind} in {place}", path, expects(EITHER), partial(_turn, path=path, fields=make(text)))
        for place, path, make in PLACES
        for kind, text in TEXTS
        if (kind != "the other half" or place in ("message", "call arguments", "text"))
        and (kind != "a megabyte" or place not in ("an unknown field", "role"))
    ),
    *(
        Attack(f"{kind} in {place}", "prompts", expects(EITHER), partial(_prompt, body=make(text)))
        for place, make in SENT
        for kind, text in TEXTS
    ),
    *(
        Attack(f"{kind} in {place}", "NATS inbox", "a reply", partial(_nats, body=make(text)))
        for place, make in SENT
        for kind, text in TEXTS[:3]
    ),
    *(
        Attack(f"a reward of {reward}", "seal", expects(REFUSED), partial(_seal_reward, reward=reward))
        for reward in ("NaN", "1e999", "1e308", "-1e300", '"1"', "[1]")
    ),
    *(Attack(f"{kind} in metadata", "seal", expects(EITHER), partial(_seal, text=text)) for kind, text in TEXTS),
    *(
        Attack(f"{name} of {kind}", CHAT, expects(EITHER), partial(_header, name=name, value=value))
        for name in ("idempotency-key", "user-agent", "x-stainless-retry-count")
        for kind, value in (("Latin-1", b"\xe9\xff"), ("escapes", b"a\x1b[31mb"), ("8 KB", b"k" * 8000))
    ),
]
