"""Answers of OpenAI's Responses: the response, its items, and the events of a stream."""

from typing import Any

from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import (
    AgentRequest,
    Answer,
    CallArguments,
    CallBegun,
    Content,
    Part,
    Reasoning,
    named_event,
)
from serve_apps.rollouts.agents.canonical import calls_of, carry
from serve_apps.rollouts.agents.dialects.chat import log_prob_entries

ENCRYPTED, LOG_PROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
_ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_p": 1.0,
    "top_logprobs": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "truncation": "disabled",
    "service_tier": "default",
    "user": None,
}
"""Request fields that the answer repeats, with their defaults."""


def resource(
    request: AgentRequest, id: str, created: int, output: list[dict[str, Any]], answer: Answer | None, status: str = ""
) -> dict[str, Any]:
    """Return the response. answer: None while it is in progress."""
    values = {name: request.body.get(name) for name in (*_ECHOED, "reasoning", "text")}
    echoed = {name: values[name] if values[name] is not None else default for name, default in _ECHOED.items()}
    is_cut = answer is not None and answer.stop is not StopReason.STOP
    done = status or ("incomplete" if is_cut else "in_progress" if answer is None else "completed")
    tools = [{"description": None, "strict": False, **tool} for tool in request.body.get("tools") or ()]
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": created,
        "completed_at": created if done == "completed" else None,
        "status": done,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "model": request.model,
        "output": output,
        "tools": tools,
        "reasoning": {"effort": None, "summary": None, **(values["reasoning"] or {})},
        "text": {"format": {"type": "text"}, **(values["text"] or {})},
        "usage": None if answer is None else _usage(answer),
        "previous_response_id": None,
        "background": False,
        "store": False,
        **echoed,
    }


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens},
        "output_tokens": len(answer.tokens),
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": answer.prompt_tokens + len(answer.tokens),
    }


def items_of(request: AgentRequest, answer: Answer) -> list[dict[str, Any]]:
    """Return the answer's items: reasoning, message, calls. An empty message is left out if there are calls."""
    items, message, output = _Items(request, answer.id), answer.message, list[dict[str, Any]]()
    if reasoning := message.get("reasoning_content"):
        output.append(items.reasoning(0, reasoning))
    if message["content"] or not message.get("tool_calls"):
        entries = [] if request.log_probs is None else log_prob_entries(answer.pieces, answer.log_probs)
        output.append(items.message(len(output), message["content"], entries))
    return output + [items.call(at, *call) for at, call in enumerate(calls_of(message), len(output))]


class _Items:
    """Makes the items of an answer. has_summary: the request asks for a summary, which is the whole reasoning."""

    def __init__(self, request: AgentRequest, id: str) -> None:
        self._id = id
        self.has_summary = bool((request.body.get("reasoning") or {}).get("summary"))
        self._is_carried = ENCRYPTED in (request.body.get("include") or ())

    def reasoning(self, index: int, text: str) -> dict[str, Any]:
        summary = [{"type": "summary_text", "text": text}] if self.has_summary else []
        content = {} if self.has_summary else {"content": [{"type": "reasoning_text", "text": text}]}
        sealed = {"encrypted_content": carry(text)} if self._is_carried else {}
        return self._item("rs", index, "reasoning") | {"summary": summary} | content | sealed

    def message(self, index: int, text: str, log_probs: list[dict[str, Any]]) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": log_probs}
        return self._item("msg", index, "message") | {"role": "assistant", "content": [part]}

    def call(self, index: int, id: str, name: str, arguments: str) -> dict[str, Any]:
        return self._item("fc", index, "function_call") | {"call_id": id, "name": name, "arguments": arguments}

    def _item(self, prefix: str, index: int, kind: str) -> dict[str, Any]:
        return {"id": f"{prefix}_{self._id}_{index}", "type": kind, "status": "completed"}


class ResponsesStream:
    """Encodes one streamed answer. One item is open at a time: `_open` is its kind, `_text` its text so far."""

    def __init__(self, request: AgentRequest, id: str, created: int) -> None:
        self._request, self._id, self._created = request, id, created
        self._items, self._done, self._number = _Items(request, id), list[dict[str, Any]](), -1
        self._open: type[Content] | type[Reasoning] | CallBegun | None = None
        self._item_id: str  # with `_text`, of the open item
        self._text: str
        self._shown, self._later = list[dict[str, Any]](), list[dict[str, Any]]()
        """Log-prob entries: of the open message; and of tokens without text yet, which the next delta shows."""

    def begin(self) -> bytes:
        response = resource(self._request, self._id, self._created, [], None)
        return self._event("created", response=response) + self._event("in_progress", response=response)

    def part(self, part: Part) -> bytes:
        match part:
            case Content(text, _, log_probs, pieces):
                self._later += [] if self._request.log_probs is None else log_prob_entries(pieces, log_probs)
                if not text:
                    return b""
                begun, shown, self._later = self._begin(Content), self._later, []
                self._text += text
                self._shown += shown
                return begun + self._event("output_text.delta", **self._place(), delta=text, logprobs=shown)
            case Reasoning(text):
                begun = self._begin(Reasoning)
                self._text += text
                return begun + self._event(f"{self._reasoning}.delta", **self._place(), delta=text)
            case CallBegun():
                return self._begin(part)
            case CallArguments(_, text):
                self._text += text
                return self._event("function_call_arguments.delta", **self._place(), delta=text)

    def end(self, answer: Answer) -> bytes:
        empty = b"" if self._open or self._done else self._begin(Content)
        closed = empty + self._close()
        response = resource(self._request, self._id, self._created, self._done, answer)
        return closed + self._event(response["status"], response=response)

    def fail(self, status: int, message: str) -> bytes:
        response = resource(self._request, self._id, self._created, self._done, None, "failed")
        return self._event("failed", response=response | {"error": {"code": "server_error", "message": message}})

    def _begin(self, kind: type[Content] | type[Reasoning] | CallBegun) -> bytes:
        """Return the events that open an item; empty if it is open."""
        if self._open is kind:
            return b""
        closed = self._close()
        self._open, self._text, self._shown = kind, "", []
        item = self._item()
        self._item_id = item["id"]
        empty: dict[str, Any] = {name: [] for name in ("content", "summary") if name in item}
        added = item | {"status": "in_progress"} | empty
        head = self._event("output_item.added", output_index=len(self._done), item=added)
        return closed + head + self._part_event("added", item)

    def _close(self) -> bytes:
        """Return the events that close the open item; empty if none is open."""
        if self._open is None:
            return b""
        place, item = self._place(), self._item()
        if isinstance(self._open, CallBegun):
            done = self._event("function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"])
        elif self._open is Content:
            done = self._event("output_text.done", **place, text=self._text, logprobs=self._shown)
        else:
            done = self._event(f"{self._reasoning}.done", **place, text=self._text)
        done += self._part_event("done", item)
        done += self._event("output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        self._open = None
        return done

    def _item(self) -> dict[str, Any]:
        """Return the open item with its text so far."""
        index = len(self._done)
        if isinstance(self._open, CallBegun):
            return self._items.call(index, self._open.id, self._open.name, self._text)
        if self._open is Content:
            return self._items.message(index, self._text, self._shown)
        return self._items.reasoning(index, self._text)

    @property
    def _reasoning(self) -> str:
        return "reasoning_summary_text" if self._items.has_summary else "reasoning_text"

    @property
    def _is_summary(self) -> bool:
        return self._open is Reasoning and self._items.has_summary

    def _part_event(self, verb: str, item: dict[str, Any]) -> bytes:
        if isinstance(self._open, CallBegun):
            return b""
        (part,) = item["summary" if self._is_summary else "content"]
        name = "reasoning_summary_part" if self._is_summary else "content_part"
        return self._event(f"{name}.{verb}", **self._place(), part=part)

    def _place(self) -> dict[str, Any]:
        """Return the fields that locate the open item's text in the response."""
        place: dict[str, Any] = {"item_id": self._item_id, "output_index": len(self._done)}
        if isinstance(self._open, CallBegun):
            return place
        return place | {"summary_index" if self._is_summary else "content_index": 0}

    def _event(self, kind: str, **values: object) -> bytes:
        self._number += 1
        return named_event({"type": f"response.{kind}", "sequence_number": self._number, **values})
