"""The host without SGLang: whatever it is asked it answers, also where SGLang fails."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from schemas.rollouts import Sampling, StopReason
from serve_apps.engines import messages
from serve_apps.engines.engine import GenerateRequest
from serve_apps.engines.host import Host
from slime_events.core.child.frame_reader import FrameReader
from storage.cancellation import end_all

DEADLINE_S = 10.0
END, OTHER_END = 7, 8
PROMPT = np.zeros(1, np.int32)
REQUEST = GenerateRequest("", PROMPT, Sampling(max_new_tokens=8), 0)
GENERATE = messages.Generate("1", REQUEST)
SCORE = messages.Score("2", REQUEST, PROMPT)
UPDATE = messages.UpdateWeights("3", "/weights", 7)


class Manager:
    """SGLang's tokenizer manager, as far as the host needs it: fails, or generates nothing until it is aborted."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error, self._running = error, dict[str, asyncio.Event]()
        self.tokenizer = SimpleNamespace(decode=lambda tokens, **how: "", eos_token_id=END)
        self.model_config = SimpleNamespace(hf_eos_token_id={END, OTHER_END})
        self.server_args = SimpleNamespace(enable_return_routed_experts=False)
        self.tokens: list[int] = []
        self.reason: dict[str, Any] = {"type": "abort"}
        self.messages: list[Any] = []

    def auto_create_handle_loop(self) -> None: ...

    async def generate_request(self, request: Any, _: None) -> AsyncIterator[dict[str, Any]]:
        if self._error is not None:
            raise self._error
        self.messages.append(request)
        self._running[request.rid] = asyncio.Event()
        await self._running[request.rid].wait()
        log_probs = [(-0.5, token, None) for token in self.tokens]
        meta = {"output_token_logprobs": log_probs, "finish_reason": self.reason, "cached_tokens": 2}
        yield {"meta_info": meta, "output_ids": self.tokens}

    def abort_request(self, rid: str) -> None:
        if rid in self._running:
            self._running[rid].set()

    async def pause_generation(self, request: Any) -> None:
        assert self._error is not None
        raise self._error


@pytest.fixture(autouse=True)
def io_struct(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = SimpleNamespace(GenerateReqInput=SimpleNamespace, PauseGenerationReqInput=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.io_struct", requests)
    monkeypatch.setitem(sys.modules, "sglang.srt.managers", SimpleNamespace(io_struct=requests))


async def answer(manager: Manager, *frames: messages.ToHost) -> messages.FromHost:
    """Return the host's first answer to frames that come together."""
    ours, theirs = socket.socketpair()
    engine = SimpleNamespace(tokenizer_manager=manager, loop=asyncio.get_running_loop())
    host = asyncio.create_task(Host(engine, theirs).serve())
    reader, writer = await asyncio.open_connection(sock=ours)
    answers = FrameReader(reader)
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert isinstance(messages.from_host.decode(await answers.next()), messages.Ready)
            writer.write(b"".join(map(messages.encode, frames)))
            return messages.from_host.decode(await answers.next())
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        await end_all(host)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError("too long"), "too long"), (KeyError("meta_info"), "KeyError: 'meta_info'")],
)
async def test_whatever_a_request_fails_with_is_answered(error: Exception, reason: str) -> None:
    assert await answer(Manager(error), GENERATE) == messages.Answer("1", reason)
    assert await answer(Manager(error), SCORE) == messages.Answer("2", reason)
    assert await answer(Manager(error), UPDATE) == messages.Answer("3", reason)


async def test_a_response_that_is_aborted_at_once_ends() -> None:
    ended = await answer(Manager(), GENERATE, messages.Abort("1"))
    assert isinstance(ended, messages.Piece)
    assert ended.delta.finish is StopReason.ABORT


async def test_what_else_is_asked_of_sglang_is_asked_and_its_answer_told() -> None:
    manager, more = Manager(), {"logprob_start_len": 0, "image_data": ["x"]}
    sampling = Sampling(max_new_tokens=8, more={"min_p": 0.5})
    generate = messages.Generate("1", replace(REQUEST, sampling=sampling, payload=more))
    ended = await answer(manager, generate, messages.Abort("1"))
    assert isinstance(ended, messages.Piece)
    assert ended.delta.meta == {"finish_reason": {"type": "abort"}, "cached_tokens": 2}
    assert (manager.messages[0].logprob_start_len, manager.messages[0].image_data) == (0, ["x"])
    assert manager.messages[0].sampling_params["min_p"] == 0.5
    plain = await answer(Manager(), GENERATE, messages.Abort("1"))
    assert isinstance(plain, messages.Piece)
    assert plain.delta.meta == {}


async def test_an_unknown_reason_to_end_is_told_and_no_error() -> None:
    manager = Manager()
    manager.reason = {"type": "repetition", "matched": 3}
    ended = await answer(manager, GENERATE, messages.Abort("1"))
    assert isinstance(ended, messages.Piece)
    assert (ended.delta.finish, ended.delta.meta["finish_reason"]) == (StopReason.STOP, manager.reason)


@pytest.mark.parametrize(
    ("tokens", "finish"),
    [
        ([3], StopReason.ABORT),
        ([3, END], StopReason.STOP),
        ([OTHER_END], StopReason.STOP),
        ([3] * 8, StopReason.LENGTH),
    ],
)
async def test_one_that_ends_as_it_is_aborted_has_ended(tokens: list[int], finish: StopReason) -> None:
    manager = Manager()
    manager.tokens = tokens
    ended = await answer(manager, GENERATE, messages.Abort("1"))
    assert isinstance(ended, messages.Piece)
    assert ended.delta.finish is finish
    assert ended.delta.tokens.tolist() == tokens


async def test_one_that_had_ended_before_is_not_gone_on_with() -> None:
    resumed = replace(REQUEST, resume=np.array([3, END], np.int32))
    ended = await answer(Manager(), messages.Generate("1", resumed))
    assert isinstance(ended, messages.Piece)
    assert (ended.delta.finish, ended.delta.tokens.tolist()) == (StopReason.STOP, [])
