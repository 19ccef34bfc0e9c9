"""Test that code for slime works unchanged: its helpers lead to the rollout's own engine."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from schemas.arrays import unpack
from schemas.errors import PlugPointError
from schemas.rollouts import RolloutCompleted, RolloutFailed, Sampling, StopReason
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded, TurnRole
from serve_apps.engines.checks import read_sampling
from serve_apps.engines.engine import Delta, GenerateRequest, sampling_params
from serve_apps.rollouts.generate.slime.requests import post
from tests.generate.scene import a_run, events, setup
from tests.scripted_engine import ScriptedEngine
from tests.simulation.crash import Crash, Fate, Half

FUNCTION = f"{Path(__file__).with_name('slime_style.py')}:generate"


class _Retrieval(BaseHTTPRequestHandler):
    queries: list[dict] = []

    def do_POST(self) -> None:
        self.queries.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"result": f"page {len(self.queries)}"}).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def retrieval() -> Iterator[str]:
    _Retrieval.queries.clear()
    server = HTTPServer(("127.0.0.1", 0), _Retrieval)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/retrieve"
    server.shutdown()
    server.server_close()


async def test_a_search_loop_written_for_slime(tmp_path: Path, retrieval: str) -> None:
    run = a_run(tmp_path, setup(FUNCTION, retrieval_url=retrieval))
    await run.run()
    assert not events(run, RolloutFailed)
    assert [turn.role for turn in events(run, TurnRecorded)] == [TurnRole.ASSISTANT, TurnRole.TOOL] * 3
    (done,) = events(run, RolloutCompleted)
    lengths = [len(f"<information>page {number}</information>") for number in (1, 2, 3)]
    assert done.loss_mask is not None
    assert unpack(done.loss_mask).tolist() == [bit for n in lengths for bit in [1] * 6 + [0] * n]
    assert [query["topk"] for query in _Retrieval.queries] == [1, 1, 1]


async def test_its_pages_are_not_fetched_again_after_a_crash(tmp_path: Path, retrieval: str) -> None:
    fate = Fate([Crash(8, Half.AFTER, role="engine0")])
    run = a_run(tmp_path, setup(FUNCTION, retrieval_url=retrieval), fate=fate)
    await run.run()
    assert run.fate.exhausted
    tools = events(run, TurnRecorded, role=TurnRole.TOOL)
    assert [tool.result for tool in tools] == [{"result": f"page {number}"} for number in (1, 2, 3)]
    assert len(_Retrieval.queries) == 3
    assert len(events(run, StepCommitted)) == 1


async def test_there_is_no_session_outside_of_a_rollout() -> None:
    with pytest.raises(PlugPointError, match="only a running generate function"):
        await post("http://127.0.0.1:0/generate", {"text": "hello"})


async def test_what_else_sglang_takes_goes_there_and_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from slime.utils.http_utils import post\n"
        "async def generate(args, sample, sampling_params):\n"
        "    url = f'http://{args.sglang_router_ip}:{args.sglang_router_port}/generate'\n"
        "    more = {'image_data': ['data:x'], 'logprob_start_len': 0, 'lora_path': None}\n"
        "    params = dict(sampling_params, ignore_eos=True, regex='a+', max_new_tokens=6)\n"
        "    asked = {'text': sample.prompt, 'sampling_params': params, 'return_logprob': True, **more}\n"
        "    answer = await post(url, asked)\n"
        "    meta = answer['meta_info']\n"
        "    sample.tokens = [1]\n"
        "    tokens, log_probs = answer['output_ids'], [pair[0] for pair in meta['output_token_logprobs']]\n"
        "    said = {'meta_info': meta, 'text': answer['text']}\n"
        "    sample.append_response_tokens(args, tokens=tokens, log_probs=log_probs, **said)\n"
        "    sample.asked_of = meta['input_token_logprobs']\n"
        "    return sample\n"
    )
    requests: list[GenerateRequest] = []
    generate = ScriptedEngine.generate

    async def noted(engine: ScriptedEngine, request: GenerateRequest) -> AsyncIterator[Delta]:
        requests.append(request)
        async for delta in generate(engine, request):
            meta = {"input_token_logprobs": [[-1.0, 7, None]], "finish_reason": {"type": "repetition"}}
            yield replace(delta, meta=meta if delta.finish else {})

    monkeypatch.setattr(ScriptedEngine, "generate", noted)
    run = a_run(tmp_path / "run", setup(f"{file}:generate"))
    await run.run()
    assert not events(run, RolloutFailed)
    (request,), (turn,), (done,) = requests, events(run, TurnRecorded), events(run, RolloutCompleted)
    assert request.payload == turn.payload == {"image_data": ["data:x"], "logprob_start_len": 0}
    sent = sampling_params(request.sampling)
    assert (sent["ignore_eos"], sent["regex"], "more" in sent) == (True, "a+", False)
    assert done.attributes["asked_of"] == [[-1.0, 7, None]]
    assert (turn.meta["finish_reason"], done.stop) == ({"type": "repetition"}, StopReason.LENGTH), "kept, not raised"


def test_sampling_parameters_go_there_and_back() -> None:
    own_sampling = Sampling(max_new_tokens=7, temperature=0.5, stop=("a", "b"), stop_token_ids=(3,))
    assert read_sampling(own_sampling, sampling_params(own_sampling)) == (own_sampling, None)
    more = Sampling(max_new_tokens=7, more={"ignore_eos": True})
    assert read_sampling(more, sampling_params(more) | {"min_p": 0.1})[0].more == {"ignore_eos": True, "min_p": 0.1}
    sampling, seed = read_sampling(own_sampling, {"stop": "x", "max_new_tokens": 3, "top_p": None, "sampling_seed": 5})
    assert (sampling.stop, seed) == (("x",), 5)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"regex": object()}, "sampling parameter regex is object"),
        ({"no_stop_trim": False}, "can only be True"),
        ({"max_new_tokens": 0}, "no room"),
        ({"temperature": "hot"}, "Expected `float`"),
    ],
)
def test_sampling_parameters_that_mean_nothing_are_refused(params: dict, message: str) -> None:
    with pytest.raises(PlugPointError, match=message):
        read_sampling(Sampling(max_new_tokens=7), params)
