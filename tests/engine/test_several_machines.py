"""A SGLang server over two machines, which a run may use as an engine that runs already. Here both are processes."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from storage.nats.ports import free_port
from tests.engine import tiny_model
from tests.sglang_server import SglangServer

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(1500)]

PROMPTS = [[72, 101, 108], [1, 2, 3, 4, 5, 6, 7], [200] * 40]
END_S = 240.0


def generated(address: str) -> list[tuple[list[int], list[float]]]:
    """Return the tokens of each prompt, greedy, with their log-probs."""
    answers = []
    for prompt in PROMPTS:
        sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
        payload = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
        body, headers = json.dumps(payload).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"http://{address}/generate", body, headers)) as answer:
            meta: dict[str, Any] = json.load(answer)["meta_info"]
        pairs = [entry[:2] for entry in meta["output_token_logprobs"]]
        answers.append(([token for _, token in pairs], [log_prob for log_prob, _ in pairs]))
    return answers


def test_a_server_over_two_machines_has_the_tokens_of_one_machine_and_ends_with_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    model = str(tiny_model.write(tmp_path / "model", 0))
    with SglangServer(model, tmp_path / "one.log", "--tp-size", "2") as server:
        server.wait()
        expected = generated(server.address)
    both = ("--tp-size", "2", "--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{free_port()}")
    first = SglangServer(model, tmp_path / "first.log", *both, "--node-rank", "0")
    second = SglangServer(model, tmp_path / "second.log", *both, "--node-rank", "1")
    with first, second:
        first.wait()
        answers = generated(first.address)
        second.kill()
        _until_it_fails(first.address)
    for (tokens, log_probs), (own_tokens, own_log_probs) in zip(expected, answers, strict=True):
        assert own_tokens == tokens
        assert own_log_probs == pytest.approx(log_probs, abs=1e-5)


def _until_it_fails(address: str) -> None:
    """Wait until the server no longer answers."""
    until = time.monotonic() + END_S
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://{address}/health_generate", timeout=30):
                time.sleep(0.5)
        except (urllib.error.URLError, OSError):
            return
    raise AssertionError("it still generates")
