"""What OpenAI's Responses answers: the response, its items, and the events that make them."""

from typing import Any

from schemas.rollouts import StopReason
from serve_apps.agents.asked import Asked, CallArguments, CallBegun, Content, Part, Reasoning, Said
from serve_apps.agents.canonical import calls_of, carry
from serve_apps.agents.dialects import sse
from serve_apps.agents.dialects.chat import log_prob_entries

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
"""Fields of the request that the answer repeats, and what it says where they were not given."""


def resource(
    asked: Asked, id: str, created: int, output: list[dict[str, Any]], said: Said | None, status: str = ""
) -> dict[str, Any]:
    """The response. said: None while it is in progress."""
    given = {name: asked.body.get(name) for name in (*_ECHOED, "reasoning", "text")}
    echoed = {name: given[name] if given[name] is not None else default for name, default in _ECHOED.items()}
    is_cut = said is not None and said.stop is not StopReason.STOP
    done = status or ("incomplete" if is_cut else "in_progress" if said is None else "completed")
    tools = [{"description": None, "strict": False, **tool} for tool in asked.body.get("tools") or ()]
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": created,
        "completed_at": created if done == "completed" else None,
        "status": done,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "model": asked.model,
        "output": output,
        "tools": tools,
        "reasoning": {"effort": None, "summary": None, **(given["reasoning"] or {})},
        "text": {"format": {"type": "text"}, **(given["text"] or {})},
        "usage": None if said is None else _usage(said),
        "previous_response_id": None,
        "background": False,
        "store": False,
        **echoed,
    }


def _usage(said: Said) -> dict[str, Any]:
    return {
        "input_tokens": said.prompt_tokens,
        "input_tokens_details": {"cached_tokens": said.cached_tokens},
        "output_tokens": len(said.tokens),
        "output_tokens_details": {"reasoning_tokens": said.reasoning_tokens},
        "total_tokens": said.prompt_tokens + len(said.tokens),
    }


def items_of(asked: Asked, said: Said) -> list[dict[str, Any]]:
    """The answer's items: reasoning, message, calls; a message that is empty where there is nothing else."""
    made, message = _Items(asked, said.id), said.message
    if reasoning := message.get("reasoning_content"):
        made.reasoning(reasoning)
    if message["content"] or not message.get("tool_calls"):
        entries = [] if asked.log_probs is None else log_prob_entries(said.pieces, said.log_probs)
        made.message(message["content"], entries)
    for id, name, arguments in calls_of(message):
        made.call(id, name, arguments)
    return made.items


class _Items:
    """Items of one answer in their order, each whole."""

    def __init__(self, asked: Asked, id: str) -> None:
        self._id, self.items = id, list[dict[str, Any]]()
        self.has_summary = bool((asked.body.get("reasoning") or {}).get("summary"))
        self._is_carried = ENCRYPTED in (asked.body.get("include") or ())

    def _add(self, prefix: str, kind: str, **rest: Any) -> dict[str, Any]:
        item = {"id": f"{prefix}_{self._id}_{len(self.items)}", "type": kind, "status": "completed", **rest}
        self.items.append(item)
        return item

    def reasoning(self, text: str) -> dict[str, Any]:
        summary = [{"type": "summary_text", "text": text}] if self.has_summary else []
        content = {} if self.has_summary else {"content": [{"type": "reasoning_text", "text": text}]}
        sealed = {"encrypted_content": carry(text)} if self._is_carried else {}
        return self._add("rs", "reasoning", summary=summary, **content, **sealed)

    def message(self, text: str, log_probs: list[dict[str, Any]]) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": log_probs}
        return self._add("msg", "message", role="assistant", content=[part])

    def call(self, id: str, name: str, arguments: str) -> dict[str, Any]:
        return self._add("fc", "function_call", call_id=id, name=name, arguments=arguments)


class ResponsesStream:
    """See `Encoder`. One item is open at a time: `_open` is its kind, `_text` what it has so far."""

    def __init__(self, asked: Asked, id: str, created: int) -> None:
        self._asked, self._id, self._created = asked, id, created
        self._made, self._number = _Items(asked, id), -1
        self._open: type[Content] | type[Reasoning] | type[CallBegun] | None = None
        self._text, self._log_probs = "", list[dict[str, Any]]()
        self._call = CallBegun(0, "", "")

    def begin(self) -> bytes:
        response = resource(self._asked, self._id, self._created, [], None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def part(self, part: Part) -> bytes:
        match part:
            case Content(text, _, log_probs, pieces):
                entries = [] if self._asked.log_probs is None else log_prob_entries(pieces, log_probs)
                if not text:
                    self._log_probs += entries
                    return b""
                begun = self._begin(Content)
                shown, self._log_probs = self._log_probs + entries, []
                self._text += text
                self._shown += shown
                return begun + self._event("response.output_text.delta", **self._place(), delta=text, logprobs=shown)
            case Reasoning(text):
                begun = self._begin(Reasoning)
                self._text += text
                name = f"response.reasoning_{'summary_' if self._made.has_summary else ''}text.delta"
                return begun + self._event(name, **self._place(), delta=text)
            case CallBegun():
                closed = self._close()
                self._call = part
                return closed + self._begin(CallBegun)
            case CallArguments(_, text):
                self._text += text
                return self._event("response.function_call_arguments.delta", **self._place(), delta=text)

    def end(self, said: Said) -> bytes:
        closed = self._close() if self._open or self._made.items else self._begin(Content) + self._close()
        response = resource(self._asked, self._id, self._created, self._made.items, said)
        return closed + self._event(f"response.{response['status']}", response=response)

    def fail(self, status: int, message: str) -> bytes:
        response = resource(self._asked, self._id, self._created, self._made.items, None, "failed")
        response["error"] = {"code": "server_error", "message": message}
        return self._event("response.failed", response=response)

    def _begin(self, kind: type[Content] | type[Reasoning] | type[CallBegun]) -> bytes:
        """The events that open an item, where another kind or none is open."""
        if self._open is kind:
            return b""
        closed = self._close()
        self._open, self._text, self._shown = kind, "", list[dict[str, Any]]()
        item = self._item()
        self._made.items.pop()
        empty: dict[str, Any] = {"content": []} if kind is Content else {"summary": []} if kind is Reasoning else {}
        added = item | {"status": "in_progress"} | empty
        self._item_id = str(item["id"])
        head = self._event("response.output_item.added", output_index=len(self._made.items), item=added)
        return closed + head + self._part_event("added", item)

    def _close(self) -> bytes:
        """The events that end the open item, if there is one."""
        if self._open is None:
            return b""
        place, item = self._place(), self._item()
        index = len(self._made.items) - 1
        if self._open is CallBegun:
            name = self._call.name
            said = self._event("response.function_call_arguments.done", **place, name=name, arguments=item["arguments"])
        elif self._open is Content:
            said = self._event("response.output_text.done", **place, text=self._text, logprobs=self._shown)
        else:
            summary = "summary_" if self._made.has_summary else ""
            said = self._event(f"response.reasoning_{summary}text.done", **place, text=self._text)
        said += self._part_event("done", item, place)
        self._open = None
        return said + self._event("response.output_item.done", output_index=index, item=item)

    def _item(self) -> dict[str, Any]:
        if self._open is CallBegun:
            return self._made.call(self._call.id, self._call.name, self._text)
        if self._open is Content:
            return self._made.message(self._text, self._shown)
        return self._made.reasoning(self._text)

    def _part_event(self, verb: str, item: dict[str, Any], place: dict[str, Any] | None = None) -> bytes:
        if self._open is CallBegun:
            return b""
        is_summary = self._open is Reasoning and self._made.has_summary
        (part,) = item["summary" if is_summary else "content"]
        name = "reasoning_summary_part" if is_summary else "content_part"
        return self._event(f"response.{name}.{verb}", **(place or self._place()), part=part)

    def _place(self) -> dict[str, Any]:
        """Where the open item's text belongs to."""
        place: dict[str, Any] = {"item_id": self._item_id, "output_index": len(self._made.items)}
        if self._open is CallBegun:
            return place
        is_summary = self._open is Reasoning and self._made.has_summary
        return place | {"summary_index" if is_summary else "content_index": 0}

    def _event(self, kind: str, **values: Any) -> bytes:
        self._number += 1
        return sse.named({"type": kind, "sequence_number": self._number, **values})
