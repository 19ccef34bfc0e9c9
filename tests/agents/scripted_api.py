"""The four APIs over a script instead of a model: what a client gets for a text of the model.

`python -m tests.agents.scripted_api PORT` serves it, for the tools that look whether an API is what it says.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import AgentRequest, Answer, BadField, Dialect
from serve_apps.rollouts.agents.dialects import MESSAGES, PATHS
from serve_apps.rollouts.agents.parsing import ParserNames, Parsers
from tests.agents.byte_tokenizer import END, byte_tokenizer
from tests.agents.whole import read_whole

Model = Callable[[AgentRequest], str]
CREATED = 1_700_000_000
EVENTS = "text/event-stream"
QWEN = ParserNames("qwen", "qwen3", grammar=True)


@dataclass
class Scripted:
    """model: the raw text of an answer, with reasoning and calls as Qwen's models write them; without `END` at its end
    it was cut. step: tokens that come at a time. fails_after: tokens, after which the turn fails.
    """

    model: Model
    names: ParserNames = QWEN
    step: int = 5
    fails_after: int | None = None
    requests: list[AgentRequest] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer = byte_tokenizer()
        self.parsers = Parsers(self.names, self.tokenizer)

    def prompt(self, request: AgentRequest) -> list[int]:
        if request.tokens is not None:
            return list(request.tokens)
        text = request.text or self.tokenizer.apply_chat_template(
            list(request.messages), tokenize=False, add_generation_prompt=True, **request.template
        )
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def check(self, request: AgentRequest) -> AgentRequest:
        self.requests.append(request)
        self.parsers.check(request)
        self.parsers.constraint(request)
        return request

    def turn(self, request: AgentRequest, dialect: Dialect) -> Iterator[bytes | Answer]:
        """The events of its stream, and what they come to before the last."""
        prompt, id = self.prompt(request), hashlib.sha256(repr(request.body).encode()).hexdigest()[:12]
        reader, encoder = self.parsers.reader(request, id, prompt), dialect.stream(request, id, CREATED, len(prompt))
        generated = self.tokenizer.encode(self.model(request), add_special_tokens=False)
        generated = generated[: request.sampling.get("max_new_tokens", len(generated))]
        yield encoder.begin()
        for at in range(0, len(generated), self.step):
            if self.fails_after is not None and at >= self.fails_after:
                yield encoder.fail(500, "the engine is gone")
                return
            tokens = generated[at : at + self.step]
            yield from map(encoder.part, reader.feed(tokens, [-0.5] * len(tokens)))
        is_cut = generated[-1:] != [self.tokenizer.eos_token_id] and not request.sampling.get("stop")
        stop = StopReason.LENGTH if is_cut else StopReason.STOP
        yield from map(encoder.part, reader.end(stop))
        answer = Answer(
            id=id,
            created=CREATED,
            message=reader.message,
            stop=stop,
            text=reader.text,
            prompt_tokens=len(prompt),
            tokens=tuple(generated),
            log_probs=(-0.5,) * len(generated),
            versions=(3,),
            matched=reader.matched,
            reasoning_tokens=reader.reasoning_tokens,
            pieces=reader.pieces,
        )
        self.answers.append(answer)
        yield answer
        yield encoder.end(answer)

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.exception_handler(BadField)
        async def bad(request: Request, error: BadField) -> JSONResponse:
            dialect = PATHS[request.url.path.removesuffix("/count_tokens")]
            return JSONResponse(dialect.refusal(400, error.message, error.field), 400)

        @app.post("/v1/messages/count_tokens")
        async def count(request: Request) -> JSONResponse:
            return JSONResponse(
                MESSAGES.counted(len(self.prompt(read_whole(MESSAGES, await request.body(), MESSAGES.read_count))))
            )

        @app.get("/v1/models")
        async def models() -> JSONResponse:
            model = {"id": "scripted", "object": "model", "created": CREATED, "owned_by": "slime-events"}
            return JSONResponse({"object": "list", "data": [model]})

        async def answer(request: Request) -> Response:
            dialect = PATHS[request.url.path]
            question = self.check(read_whole(dialect, await request.body()))
            events = list(self.turn(question, dialect))
            if question.stream:
                return StreamingResponse(
                    iter([event for event in events if isinstance(event, bytes)]), media_type=EVENTS
                )
            answer_ = next((event for event in events if isinstance(event, Answer)), None)
            if answer_ is None:
                return JSONResponse(dialect.refusal(500, "the engine is gone"), 500)
            return JSONResponse(dialect.whole(question, answer_))

        for path in PATHS:
            app.post(path)(answer)
        return app


def obliging(request: AgentRequest) -> str:
    """Play an obedient model: it calls a tool that it has to, writes JSON that it has to, and thinks."""
    last = request.messages[-1] if request.messages else {"role": "user"}
    if request.tools and request.tool_choice != "none" and last["role"] == "user":
        name = (
            request.tools[0]["function"]["name"] if request.tool_choice in ("auto", "required") else request.tool_choice
        )
        (tool,) = (entry["function"] for entry in request.tools if entry["function"]["name"] == name)
        call = json.dumps({"name": name, "arguments": _fitting(tool["parameters"])}, ensure_ascii=False)
        return f"<think>\nI need {name}.\n</think>\n\n<tool_call>\n{call}\n</tool_call>{END}"
    if schema := request.sampling.get("json_schema"):
        return json.dumps(_fitting(json.loads(schema)), ensure_ascii=False) + END
    return f"Grüße, 世界 😀!{END}"


def _fitting(schema: dict[str, object]) -> object:
    """Some value of a simple JSON schema."""
    if "const" in schema or "enum" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])  # type: ignore[index]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: _fitting(part) for name, part in schema.get("properties", {}).items()}  # type: ignore[attr-defined]
    plain = {"string": "Zürich", "integer": 3, "number": 1.5, "boolean": True, "null": None}
    return [_fitting(schema["items"])] if kind == "array" else plain[str(kind)]  # type: ignore[arg-type]


@contextlib.contextmanager
def served(scripted: Scripted, port: int = 0) -> Iterator[str]:
    """Its URL, on loopback."""
    bound = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(scripted.app(), log_level="warning"))
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    with served(Scripted(obliging), int(sys.argv[1])) as url:
        print(url, flush=True)
        threading.Event().wait()
