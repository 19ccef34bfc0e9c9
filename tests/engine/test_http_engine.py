"""An engine over HTTP: the contract against a scripted server, and a server that fails in every way it can."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from schemas.errors import DeadlineExceeded, EngineError, RequestRefused
from schemas.rollouts import StopReason
from serve_apps.engines.engine import Engine
from serve_apps.engines.external.http_engine import HttpEngine
from serve_apps.engines.external.served_model import RunModel
from slime_events.plugins.tokenizer import load_tokenizer
from tests.engine import tiny_model
from tests.engine.contract import EngineContract, collect, generated, request
from tests.scripted_engine import mixed
from tests.scripted_server import Answers, ScriptedServer

DEADLINE_S = 10.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config, a tokenizer and two tensors."""
    folder = tmp_path_factory.mktemp("checkpoint")
    config = {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 264, "hidden_size": 4, "eos_token_id": 257}
    (folder / "config.json").write_text(json.dumps(config))
    tiny_model._tokenizer().save_pretrained(folder)
    _weights(folder)
    return folder


def _weights(folder: Path, rows: int = 4) -> Path:
    """Write two tensors; `rows` other than 4 fit no checkpoint of these tests."""
    folder.mkdir(exist_ok=True)
    tensors = {"embed.weight": np.zeros((rows, 2), np.float32), "norm.weight": np.ones(2, np.float32)}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
def weights(checkpoint: Path, tmp_path: Path) -> list[Path]:
    return [_weights(tmp_path / name) for name in ("one", "two")]


@pytest.fixture
async def server(checkpoint: Path) -> AsyncIterator[ScriptedServer]:
    tokenizer = load_tokenizer(str(checkpoint))
    server = ScriptedServer(Answers(str(checkpoint), lambda text: tokenizer.encode(text, add_special_tokens=False)))
    await server.start()
    yield server
    await server.kill()


def _engine(server: ScriptedServer, checkpoint: Path) -> HttpEngine:
    return HttpEngine(server.url, RunModel(str(checkpoint), "cpu"), name="run engine-1")


@pytest.fixture
async def engine(server: ScriptedServer, checkpoint: Path) -> AsyncIterator[Engine]:
    engine = _engine(server, checkpoint)
    await engine.start(DEADLINE_S)
    yield engine
    await engine.stop()


@pytest.fixture(params=[True, False], ids=["incremental", "whole"])
async def either_server(server: ScriptedServer, request: pytest.FixtureRequest) -> ScriptedServer:
    server.answers.server_info["incremental_streaming_output"] = request.param
    return server


class TestHttpEngine(EngineContract):
    """The contract, with a server that sends only new tokens, and with one that repeats all."""

    @pytest.fixture
    async def engine(self, either_server: ScriptedServer, checkpoint: Path) -> AsyncIterator[Engine]:
        engine = _engine(either_server, checkpoint)
        await engine.start(DEADLINE_S)
        engine._intervals = (8, 8)
        yield engine
        await engine.stop()

    def running(self, engine: Any) -> int:
        return len(engine._calls)


async def _collected(engine: Engine, *numbers: int, new: int = 48) -> list[Any]:
    responses = (collect(engine, request(n, new=new)) for n in numbers)
    return await asyncio.gather(*responses, return_exceptions=True)


async def test_an_update_ends_requests_and_goes_on_from_their_tokens(
    engine: HttpEngine, server: ScriptedServer, weights: list[Path]
) -> None:
    tasks = [asyncio.create_task(collect(engine, request(n, new=600))) for n in range(8)]
    await generated(engine, 8 * 32)
    await engine.update_weights(str(weights[0]), 1)
    responses = await asyncio.gather(*tasks)
    assert server.loaded == [str(weights[0])]
    for n, response in enumerate(responses):
        assert len(response.tokens) == 600
        assert {span.version for span in response.spans} == {0, 1}
        for span in response.spans:  # each log-prob is that of its version, by the script
            for place in range(span.start, span.end):
                expected = -mixed(int(response.tokens[place]), 13 + place, 2, span.version)
                assert response.log_probs[place] == np.float32(expected)
        sent = [
            body
            for body in server.requests
            if body.get("stream") and body["sampling_params"]["sampling_seed"] == 1000 + n
        ]
        assert len(sent) == 2
        assert sent[1]["input_ids"] == [*sent[0]["input_ids"], *response.tokens[: len(sent[1]["input_ids"]) - 13]]


async def test_a_killed_server_ends_requests_and_gets_weights_before_it_generates_again(
    engine: HttpEngine, server: ScriptedServer, checkpoint: Path, weights: list[Path]
) -> None:
    await engine.update_weights(str(weights[0]), 1)
    task = asyncio.create_task(collect(engine, request(new=900)))
    await generated(engine, 32)
    await server.kill()
    with pytest.raises(EngineError):
        await task
    assert not await engine.healthy()
    await server.start()
    with pytest.raises(EngineError):
        await collect(engine, request())  # the server has its first weights again
    assert not await engine.healthy()
    second = _engine(server, checkpoint)
    await second.start(DEADLINE_S)
    await second.update_weights(str(weights[0]), 1)
    response = await collect(second, request())
    assert {span.version for span in response.spans} == {1}
    await second.stop()


async def test_a_restart_that_nobody_saw_is_noticed_at_the_first_token(
    engine: HttpEngine, server: ScriptedServer, weights: list[Path]
) -> None:
    await engine.update_weights(str(weights[0]), 1)
    await server.kill()
    await server.start()
    for _ in range(2):  # the first may fail because its connection is gone
        with pytest.raises(EngineError):
            await collect(engine, request())
    assert not await engine.healthy()


async def test_weights_of_another_client_end_the_engine(
    engine: HttpEngine, server: ScriptedServer, weights: list[Path]
) -> None:
    await engine.update_weights(str(weights[0]), 1)
    server.weights = "somebody else's"
    assert not await engine.healthy()
    with pytest.raises(EngineError, match="somebody else's"):
        await collect(engine, request())


async def test_an_update_that_the_server_refuses_ends_the_engine(
    engine: HttpEngine, server: ScriptedServer, weights: list[Path]
) -> None:
    server.answers.refuses = "disk on fire"
    with pytest.raises(EngineError, match="disk on fire"):
        await engine.update_weights(str(weights[0]), 1)
    assert engine.version == 0
    assert not await engine.healthy()  # which weights it has is unknown


async def test_weights_that_do_not_fit_are_not_sent(engine: HttpEngine, server: ScriptedServer, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"embed\.weight"):
        await engine.update_weights(str(_weights(tmp_path / "wide", rows=5)), 1)
    assert server.loaded == []
    assert await engine.healthy()


HALF = "data: " + json.dumps({"text": "ü"}, ensure_ascii=False)


def _changed(message: bytes, **fields: Any) -> bytes:
    value = json.loads(message[6:])
    value["meta_info"] |= {name: part for name, part in fields.items() if name in value["meta_info"]}
    value |= {name: part for name, part in fields.items() if name in value}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


BAD: dict[str, Any] = {
    "cut": lambda message: [message[:40]],
    "not json": lambda message: [b"data: {]}\n\n"],
    "half a character": lambda message: [HALF.encode()[:-3] + b"\n\n"],
    "not a stream": lambda message: [b"<html>Bad gateway</html>\n\n"],
    "a list": lambda message: [b"data: [1, 2]\n\n"],
    "twice": lambda message: [message, message],
    "left out": lambda message: [],
    "tokens of another type": lambda message: [_changed(message, output_ids=["7"])],
    "a token below 0": lambda message: [_changed(message, output_ids=[-1])],
    "tokens without log-probs": lambda message: [_changed(message, output_token_logprobs=None)],
    "log-probs of other tokens": lambda message: [_changed(message, output_token_logprobs=[[-1.0, 300, None]] * 16)],
    "log-probs of another type": lambda message: [_changed(message, output_token_logprobs=[["a", 1, None]])],
    "a log-prob that is not a number": lambda message: [message.replace(b"[[-", b"[[NaN, -")],
    "another response's": lambda message: [_changed(message, id="other")],
    "no weights": lambda message: [_changed(message, weight_version=None)],
    "an end of another type": lambda message: [_changed(message, finish_reason="stop")],
    "an error": lambda message: [b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'],
    "an early end": lambda message: [b"data: [DONE]\n\n"],
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_answer_costs_one_response(engine: HttpEngine, server: ScriptedServer, name: str) -> None:
    good = await collect(engine, request(1))
    bad = iter([True])

    def spoil(number: int, message: bytes) -> Iterable[bytes]:
        return BAD[name](message) if number == 1 and next(bad, False) else (message,)

    server.answers.spoil = spoil
    first, *others = await _collected(engine, 0, 1, 1)
    assert sum(isinstance(response, EngineError) for response in (first, *others)) == 1
    assert await engine.healthy()
    server.answers.spoil = lambda _, message: (message,)
    again = await collect(engine, request(1))
    assert (again.tokens.tobytes(), again.log_probs.tobytes()) == (good.tokens.tobytes(), good.log_probs.tobytes())
    await asyncio.sleep(0.1)
    assert not server.running


async def test_a_refused_request_is_told_from_a_failure(engine: HttpEngine, server: ScriptedServer) -> None:
    server.answers.spoil = lambda *_: (b'data: {"error": {"message": "too long", "code": 400}}\n\n',)
    with pytest.raises(RequestRefused, match="too long"):
        await collect(engine, request())


@pytest.mark.parametrize(
    ("server_info", "model_info", "reason"),
    [
        ({"dtype": "bfloat16"}, {}, "--dtype float32"),
        ({"dtype": "auto"}, {}, "float16"),
        ({"quantization": "fp8"}, {}, "quantizes"),
        ({"skip_tokenizer_init": True}, {}, "--skip-tokenizer-init"),
        ({"tokenizer_worker_num": 2}, {}, "--tokenizer-worker-num"),
        ({"disaggregation_mode": "prefill"}, {}, "--disaggregation-mode"),
        ({"preferred_sampling_params": {"top_k": 5}}, {}, "--preferred-sampling-params"),
        ({"model_path": "/not/here"}, {}, "/not/here"),
        ({}, {"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({}, {"is_generation": False}, "embeddings"),
        ({"dtype": 3}, {}, "not SGLang's"),
    ],
)
async def test_a_server_of_something_else_is_refused_by_name(
    server: ScriptedServer,
    checkpoint: Path,
    server_info: dict[str, Any],
    model_info: dict[str, Any],
    reason: str,
) -> None:
    server.answers.server_info |= server_info
    server.answers.model_info |= model_info
    with pytest.raises(EngineError, match=reason):
        await _engine(server, checkpoint).start(DEADLINE_S)
    assert server.loaded == []


async def test_so_is_one_of_another_size_tokenizer_or_kind_of_log_probs(
    server: ScriptedServer, checkpoint: Path, tmp_path: Path
) -> None:
    answers = server.answers
    config = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 8}))
    server.answers = replace(answers, server_info={"model_path": str(tmp_path)})
    with pytest.raises(EngineError, match="hidden_size 8"):
        await _engine(server, checkpoint).start(DEADLINE_S)
    server.answers = replace(answers, tokenize=lambda text: [1, *answers.tokenize(text)])
    with pytest.raises(EngineError, match="tokenizer"):
        await _engine(server, checkpoint).start(DEADLINE_S)
    server.answers = replace(answers, ignores_temperature=True)
    with pytest.raises(EngineError, match="SGLANG_RETURN_ORIGINAL_LOGPROB"):
        await _engine(server, checkpoint).start(DEADLINE_S)


async def test_a_server_that_is_not_there_is_waited_for(server: ScriptedServer, checkpoint: Path) -> None:
    await server.kill()
    with pytest.raises(DeadlineExceeded, match=str(server.port)):
        await _engine(server, checkpoint).start(0.2)
    engine = _engine(server, checkpoint)
    starting = asyncio.create_task(engine.start(DEADLINE_S))
    await asyncio.sleep(0.1)
    await server.start()
    await starting
    assert (await collect(engine, request())).finish is StopReason.LENGTH
    await engine.stop()
