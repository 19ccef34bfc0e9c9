"""`Told`: an answer that an agent received whole, from the notes of its witness."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENDS = {"response.completed", "response.incomplete"}
"""Events of Responses that hold the whole answer."""
PREFIX = re.compile("^(chatcmpl-|msg_|resp_)")
"""Prefix of an answer's id, before the session's name and the turn's index."""


@dataclass(frozen=True, slots=True)
class Told:
    """session: its name. turn: its index there. calls: names of the tools that it calls."""

    session: str
    turn: int
    text: str
    calls: tuple[str, ...] = ()


def read_notes(folder: Path) -> tuple[list[Told], list[tuple[int, str]]]:
    """Return the whole answers of all agents, and the refusals: (status, body)."""
    answers, refusals = list[Told](), list[tuple[int, str]]()
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            note = json.loads(line)
            if note["status"] != 200:
                refusals.append((note["status"], note["body"]))
            elif (answer := answer_in(note["body"])) is not None:
                answers.append(answer)
    return answers, refusals


def answer_in(body: str) -> Told | None:
    """Return an answer of any of the three APIs, streamed or not; None if a stream ends with an error."""
    if body.startswith("{"):
        return _whole(json.loads(body))
    return _streamed(list(_events(body)))


def _events(body: str) -> Iterator[dict[str, Any]]:
    for line in body.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def _whole(answer: dict[str, Any]) -> Told:
    if "choices" in answer:
        message = answer["choices"][0]["message"]
        calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
        return _answer(answer["id"], message["content"] or "", calls)
    blocks = answer["content"] if "content" in answer else answer["output"]
    parts = [part for block in blocks for part in (block.get("content") or [block])]
    text = "".join(part.get("text", "") for part in parts)
    return _answer(
        answer["id"], text, [block["name"] for block in blocks if block["type"] in ("tool_use", "function_call")]
    )


def _streamed(events: list[dict[str, Any]]) -> Told | None:
    last = events[-1]
    if last.get("type") in ENDS:
        return _whole(last["response"])
    if last.get("type") == "message_stop":
        begun = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
        return _answer(
            events[0]["message"]["id"], text, [block["name"] for block in begun if block["type"] == "tool_use"]
        )
    if last.get("object") != "chat.completion.chunk":
        return None
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls = [call["function"].get("name") for delta in deltas for call in delta.get("tool_calls") or ()]
    return _answer(last["id"], "".join(delta.get("content") or "" for delta in deltas), list(filter(None, calls)))


def _answer(id: str, text: str, calls: list[str]) -> Told:
    session, _, turn = PREFIX.sub("", id).rpartition(".")
    return Told(session, int(turn), text, tuple(calls))
