"""What is written for slime works as it is: its helpers lead to the rollout's own engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from schemas.arrays import unpack
from schemas.errors import PlugPointError
from schemas.rollouts import RolloutCompleted, RolloutFailed, Sampling
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded, TurnRole
from serve_apps.engine.engine import sampling_params
from serve_apps.generate.session import read_sampling
from serve_apps.generate.slime_compat import post
from tests.generate.scene import a_run, events, setup
from tests.simulation.crash import Crash, Fate, Half

FUNCTION = f"{Path(__file__).with_name('slime_style.py')}:generate"


class _Retrieval(BaseHTTPRequestHandler):
    asked: list[dict] = []

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"result": f"page {len(self.asked)}"}).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def retrieval() -> Iterator[str]:
    _Retrieval.asked.clear()
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
    assert [asked["topk"] for asked in _Retrieval.asked] == [1, 1, 1]


async def test_its_pages_are_not_fetched_again_after_a_crash(tmp_path: Path, retrieval: str) -> None:
    fate = Fate([Crash(8, Half.AFTER, role="engine0")])
    run = a_run(tmp_path, setup(FUNCTION, retrieval_url=retrieval), fate=fate)
    await run.run()
    assert run.fate.exhausted
    tools = events(run, TurnRecorded, role=TurnRole.TOOL)
    assert [tool.result for tool in tools] == [{"result": f"page {number}"} for number in (1, 2, 3)]
    assert len(_Retrieval.asked) == 3
    assert len(events(run, StepCommitted)) == 1


async def test_there_is_no_session_outside_of_a_rollout() -> None:
    with pytest.raises(PlugPointError, match="only a generate function"):
        await post("http://127.0.0.1:0/generate", {"text": "hello"})


def test_sampling_parameters_go_there_and_back() -> None:
    given = Sampling(max_new_tokens=7, temperature=0.5, stop=("a", "b"), stop_token_ids=(3,))
    assert read_sampling(given, sampling_params(given)) == (given, None)
    sampling, seed = read_sampling(given, {"stop": "x", "max_new_tokens": 3, "top_p": None, "sampling_seed": 5})
    assert (sampling.stop, seed) == (("x",), 5)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"regex": "a+"}, "'regex' is not known here"),
        ({"no_stop_trim": False}, "can only be True"),
        ({"max_new_tokens": 0}, "no room"),
        ({"temperature": "hot"}, "Expected `float`"),
    ],
)
def test_sampling_parameters_that_mean_nothing_are_refused(params: dict, message: str) -> None:
    with pytest.raises(PlugPointError, match=message):
        read_sampling(Sampling(max_new_tokens=7), params)
