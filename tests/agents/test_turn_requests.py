"""Test what the log holds of an agent's request: its sampling and seed, its parent turn, early messages; and
refusals.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.arrays import unpack
from schemas.event import Purpose
from schemas.ids import sample_seed
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutRequested
from schemas.turns import RootReason, TurnBegun, TurnRecorded, TurnRole
from storage.memory_log import MemoryLog
from tests.agents.lone_session import SAMPLE, LoneSession
from tests.agents.stage import seal

ANSWER = 6
USER = {"role": "user", "content": "hm"}


class Session:
    """Play one session with its client, and read its events in the log."""

    def __init__(self, lone: LoneSession, client: httpx.AsyncClient, session: dict[str, Any]) -> None:
        self.lone, self.client, self.session = lone, client, session

    async def post(self, path: str = "chat/completions", headers: Any = None, **body: Any) -> httpx.Response:
        base = self.session["base_url"]
        url = f"{base.removesuffix('/v1')}/generate" if path == "generate" else f"{base}/{path}"
        plain = {"model": "m"} if path == "generate" else {"model": "m", "messages": [USER]}
        return await self.client.post(url, json=plain | body, headers=headers)

    async def answers(self, *chat: Any, **more: Any) -> list[Any]:
        """The chat with the answer to it."""
        answer = await self.post(messages=[*chat], **more)
        assert answer.status_code == 200, answer.text
        return [*chat, answer.json()["choices"][0]["message"]]

    def events(self, kind: type[Any]) -> list[Any]:
        log: Any = self.lone.log
        return [record.envelope.event for record in log.records if isinstance(record.envelope.event, kind)]

    @property
    def calls(self) -> list[RolloutRequested]:
        return [event for event in self.events(RolloutRequested) if event.purpose is Purpose.CALL]


async def opened(folder: Path, **rules: Any) -> AsyncIterator[Session]:
    lone = LoneSession(MemoryLog("lone"), folder, ANSWER)
    await lone.begin()
    async with lone.engine(), lone.gateway(**rules) as client:
        yield Session(lone, client, await lone.open(client))


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[Session]:
    async for session_ in opened(tmp_path):
        yield session_


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[Session]:
    async for session_ in opened(tmp_path, context=60):
        yield session_


SAMPLED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"max_new_tokens": ANSWER, "temperature": 1.0, "stop": ()}),
    ({"max_tokens": 3}, {"max_new_tokens": 3}),
    ({"max_tokens": ANSWER}, {"max_new_tokens": ANSWER}),
    ({"max_tokens": 100}, {"max_new_tokens": ANSWER}),
    ({"temperature": 0.1, "top_p": 0.5, "top_k": 3, "min_p": 0.5}, {"temperature": 1.0, "top_p": 1.0}),
    ({"stop": ["x", "y"]}, {"stop": ("x", "y")}),
    ({"min_tokens": 2}, {"min_new_tokens": 2}),
]


async def test_how_a_turn_is_sampled(session: Session) -> None:
    """Let through of a client's sampling what changes no probability, and no more tokens than the run allows."""
    for more, sampling in SAMPLED:
        assert (await session.post(**more)).status_code == 200
        call = session.calls[-1]
        assert {name: getattr(call.sampling, name) for name in sampling} == sampling, more
        assert call.seed == sample_seed(1, call.sample)
    await session.post(seed=5)
    assert session.calls[-1].seed == 5
    assert len({call.seed for call in session.calls}) == len(session.calls)


async def test_a_context_leaves_what_room_there_is(narrow: Session) -> None:
    async def post_prompt(count: int) -> httpx.Response:
        return await narrow.post("generate", input_ids=[1] * count, sampling_params={"max_new_tokens": 5})

    for count, room in ((10, 5), (55, 5), (57, 3), (59, 1)):
        assert (await post_prompt(count)).status_code == 200
        assert narrow.calls[-1].sampling.max_new_tokens == room
    for count in (60, 61):
        refused = await post_prompt(count)
        assert (refused.status_code, "messages" in refused.text) == (400, True)
    assert len(narrow.calls) == 4


async def test_more_messages_than_tokens_are_refused(narrow: Session) -> None:
    for path in ("chat/completions", "messages/count_tokens"):
        assert (await narrow.post(path, messages=[USER] * 61)).status_code == 400
    assert (await narrow.post("messages/count_tokens", messages=[USER] * 60)).status_code == 200
    assert narrow.calls == []


async def test_where_a_turn_goes_on(session: Session) -> None:
    chat = await session.answers(USER)
    await session.answers(*chat, USER)
    begun, (first, second) = session.events(TurnBegun), session.calls
    assert [(turn_.index, turn_.role, turn_.overlapping) for turn_ in begun] == [
        (0, TurnRole.ASSISTANT, False),
        (1, TurnRole.ASSISTANT, False),
    ]
    assert len({turn_.nonce for turn_ in begun}) == 2
    assert first.after is None
    assert second.after is not None
    assert (second.after.turn, second.after.length) == (0, first.prompt_length + ANSWER)
    assert second.prompt_length == second.after.length + len(unpack(second.prompt))
    root, other = session.events(TurnRecorded)
    assert (root.extends, root.agent.root, other.extends, other.agent.root) == (None, RootReason.FIRST, 0, None)
    assert (root.agent.dialect, root.agent.call, other.agent.call) == ("chat", first.sample, second.sample)
    assert (root.agent.client.partition("/")[0], root.role) == ("python-httpx", TurnRole.ASSISTANT)
    assert root.asked == root.agent.key == begun[0].asked != ""
    assert root.seconds >= 0
    assert root.engine != begun[0].engine != ""


async def test_what_is_counted_is_the_whole_prompt(session: Session) -> None:
    """Count the whole prompt also of a request that continues a turn; counting begins no turn."""
    claude: list[Any] = [USER]
    for _ in range(2):
        counted = await session.post("messages/count_tokens", messages=claude)
        answer = await session.post("messages", messages=claude, max_tokens=ANSWER)
        assert counted.json() == {"input_tokens": answer.json()["usage"]["input_tokens"]}
        assert session.calls[-1].prompt_length == counted.json()["input_tokens"]
        claude += [{"role": "assistant", "content": answer.json()["content"]}, USER]
    assert len(session.calls) == 2


async def test_an_answer_says_what_made_it(session: Session) -> None:
    answer = (await session.post(logprobs=True, max_tokens=4)).json()
    (turn,) = session.events(TurnRecorded)
    assert answer["id"] == f"chatcmpl-{session.session['session']}.0"
    assert answer["system_fingerprint"] == "weights-0"
    assert answer["usage"]["prompt_tokens"] == session.calls[0].prompt_length
    assert answer["usage"]["completion_tokens"] == turn.length == 4
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    shown = [entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"]]
    assert shown == pytest.approx(unpack(turn.log_probs).tolist())
    assert abs(answer["created"] - session.lone.log.records[-1].envelope.at / 1e9) < 60  # type: ignore[attr-defined]


async def test_large_requests_are_no_part_of_events(session: Session) -> None:
    for text in ("hm", "x" * 1000):
        await session.post(messages=[USER | {"content": text}])
    await session.post(messages=[USER], metadata={"a": "".join(map(str, range(9000)))})
    assert [event.agent.request.blob is None for event in session.events(TurnRecorded)] == [True, True, False]


async def test_a_retry_is_answered_from_the_log(session: Session) -> None:
    named, marked = {"idempotency-key": "one"}, {"x-stainless-retry-count": "1"}
    first = (await session.post(headers=named)).json()
    assert (await session.post(headers=named)).json() == first
    assert (await session.post(headers=named, temperature=0.5)).json() == first, "by its name, whatever it says"
    second = (await session.post()).json()
    assert second["id"] != first["id"]
    assert (await session.post(headers=marked)).json() == second
    assert len(session.calls) == 2
    streamed = await session.post(headers=named, stream=True)
    chunks = [json.loads(line[6:]) for line in streamed.text.split("\n") if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == first["choices"][0]["message"]["content"]
    assert len(session.calls) == 2


async def test_a_prompt_s_metadata_may_be_anything(tmp_path: Path) -> None:
    lone = LoneSession(MemoryLog("lone"), tmp_path, ANSWER)
    await lone.begin(metadata=["a", "list"])
    async with lone.engine(), lone.gateway(grades=False) as client:
        session = Session(lone, client, await lone.open(client))
        await session.answers(USER)
        assert (await seal(client, session.session, reward=1.0)).status_code == 200
    assert [event.sample for event in session.events(RewardAssigned)] == [SAMPLE]


async def test_what_the_model_cannot_do_is_400(session: Session) -> None:
    for more, field in (
        ({"regex": "a"}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"min_tokens": 1000}, "min_new_tokens"),
        ({"stop": [f"s{number}" for number in range(40)]}, "stop"),
    ):
        refused = await session.post(**more)
        assert refused.status_code == 400, more
        assert field in json.dumps(refused.json()["error"])
    assert session.calls == []
