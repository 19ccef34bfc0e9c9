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
    items, message, found = _Items(asked, said.id), said.message, list[dict[str, Any]]()
    if reasoning := message.get("reasoning_content"):
        found.append(items.reasoning(0, reasoning))
    if message["content"] or not message.get("tool_calls"):
        entries = [] if asked.log_probs is None else log_prob_entries(said.pieces, said.log_probs)
        found.append(items.message(len(found), message["content"], entries))
    return found + [items.call(at, *call) for at, call in enumerate(calls_of(message), len(found))]


class _Items:
    """Items of one answer. index: among them. has_summary: reasoning is shown as a summary, since one was asked for."""

    def __init__(self, asked: Asked, id: str) -> None:
        self._id = id
        self.has_summary = bool((asked.body.get("reasoning") or {}).get("summary"))
        self._is_carried = ENCRYPTED in (asked.body.get("include") or ())

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
    """See `Encoder`. One item is open at a time: `_open` is its kind, `_text` what it has so far."""

    def __init__(self, asked: Asked, id: str, created: int) -> None:
        self._asked, self._id, self._created = asked, id, created
        self._items, self._done, self._number = _Items(asked, id), list[dict[str, Any]](), -1
        self._open: type[Content] | type[Reasoning] | CallBegun | None = None
        self._item_id: str  # with `_text`, of the open item
        self._text: str
        self._shown, self._later = list[dict[str, Any]](), list[dict[str, Any]]()
        """Log-probs: of the open message; and those that came with no text of it, and are shown with the next."""

    def begin(self) -> bytes:
        response = resource(self._asked, self._id, self._created, [], None)
        return self._event("created", response=response) + self._event("in_progress", response=response)

    def part(self, part: Part) -> bytes:
        match part:
            case Content(text, _, log_probs, pieces):
                self._later += [] if self._asked.log_probs is None else log_prob_entries(pieces, log_probs)
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

    def end(self, said: Said) -> bytes:
        empty = b"" if self._open or self._done else self._begin(Content)
        closed = empty + self._close()
        response = resource(self._asked, self._id, self._created, self._done, said)
        return closed + self._event(response["status"], response=response)

    def fail(self, status: int, message: str) -> bytes:
        response = resource(self._asked, self._id, self._created, self._done, None, "failed")
        return self._event("failed", response=response | {"error": {"code": "server_error", "message": message}})

    def _begin(self, kind: type[Content] | type[Reasoning] | CallBegun) -> bytes:
        """The events that open an item, where it is not open already."""
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
        """The events that end the open item, if there is one."""
        if self._open is None:
            return b""
        place, item = self._place(), self._item()
        if isinstance(self._open, CallBegun):
            said = self._event("function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"])
        elif self._open is Content:
            said = self._event("output_text.done", **place, text=self._text, logprobs=self._shown)
        else:
            said = self._event(f"{self._reasoning}.done", **place, text=self._text)
        said += self._part_event("done", item)
        said += self._event("output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        self._open = None
        return said

    def _item(self) -> dict[str, Any]:
        """The open item, with what it has."""
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
        """Where the open item's text belongs to."""
        place: dict[str, Any] = {"item_id": self._item_id, "output_index": len(self._done)}
        if isinstance(self._open, CallBegun):
            return place
        return place | {"summary_index" if self._is_summary else "content_index": 0}

    def _event(self, kind: str, **values: Any) -> bytes:
        self._number += 1
        return sse.named({"type": f"response.{kind}", "sequence_number": self._number, **values})
