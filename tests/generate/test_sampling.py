"""Sampling parameters of one turn over those of the run, and what a session makes of prompts and tools."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from schemas.errors import EngineError, PlugPointError, ToolFailed
from schemas.rollouts import Sampling, StopReason
from schemas.turns import ToolCall
from serve_apps.engines.checks import read_sampling
from serve_apps.rollouts.generate.function import UserLoop
from serve_apps.rollouts.generate.journal import EndedTurn, InFlight
from serve_apps.rollouts.generate.session import Session, Turn, current_session, session_of_process
from serve_apps.rollouts.generate.slime.generate_state import GenerateState
from slime_events.plugins.args_view import ArgsView, CallArgs
from slime_events.plugins.sample import Sample, Status
from tests.simulation.parts import Letters

GIVEN = Sampling(max_new_tokens=7, stop=("a",), more={"min_p": 0.1})


def read(**params: Any) -> Sampling:
    return read_sampling(GIVEN, params)[0]


@pytest.mark.parametrize(
    ("seed", "taken"),
    [(None, None), (0, 0), (5.0, 5), ("6", 6), (2**63 - 1, 2**63 - 1), (-(2**63), -(2**63))],
)
def test_a_seed_is_a_whole_number(seed: Any, taken: int | None) -> None:
    assert read_sampling(GIVEN, {"sampling_seed": seed}) == (GIVEN, taken)


@pytest.mark.parametrize("seed", ["x", [], 2**63, -(2**63) - 1, float("inf")])
def test_other_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(PlugPointError):
        read_sampling(GIVEN, {"sampling_seed": seed})


@pytest.mark.parametrize(
    ("stop", "stops"), [("x", ("x",)), (["x", "y"], ("x", "y")), (("x",), ("x",)), ({"x"}, ("x",)), ([], ())]
)
def test_stop_texts_are_one_or_several(stop: Any, stops: tuple[str, ...]) -> None:
    assert read(stop=stop).stop == stops


@pytest.mark.parametrize("ids", [3, [3], (3,), {3}, frozenset({3})])
def test_stop_ids_are_one_or_several(ids: Any) -> None:
    assert read(stop_token_ids=ids).stop_token_ids == (3,)


def test_what_is_not_said_is_the_run_s() -> None:
    assert read(stop=None, min_p=None, temperature=None) == GIVEN
    assert read(top_k=5, min_p=0.2, n=1, no_stop_trim=True).more == {"min_p": 0.2}
    assert GIVEN.more == {"min_p": 0.1}
    assert read(max_new_tokens=1).max_new_tokens == 1


@pytest.mark.parametrize(
    "params",
    [
        {"n": 2},
        {"spaces_between_special_tokens": True},
        {"max_new_tokens": 0},
        {"max_new_tokens": "many"},
        {"stop": [3]},
        {"stop_token_ids": ["x"]},
        {"stop_token_ids": [-1]},
        {"temperature": -1.0},
        {"min_p": object()},
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(PlugPointError):
        read(**params)


class Turns:
    """Tools alone: each is called."""

    failure = None
    calls: list[ToolCall]

    def __init__(self) -> None:
        self.calls = []

    async def generate(self, *args: Any) -> EndedTurn:
        raise AssertionError

    async def begin_call(self, call: ToolCall) -> InFlight:
        self.calls.append(call)
        return InFlight(0, "", None, call)  # type: ignore[arg-type]

    async def end_call(self, turn: InFlight, result: Any, error: str, seconds: float) -> Any:
        self.ended = (result, error, 0.0 <= seconds < 60.0)
        return Answer(result, error)


class Answer:
    def __init__(self, value: Any, error: str) -> None:
        self._value, self._error = value, error

    def result(self) -> Any:
        if self._error:
            raise ToolFailed(self._error)
        return self._value


def session(turns: Turns | None = None, tools: Any = None, **args: Any) -> Session:
    return Session(turns or Turns(), Letters(), GIVEN, ArgsView(args), tools)


async def test_a_prompt_is_text_ids_or_messages() -> None:
    own = session()
    assert own.tokenize("ab") == own.tokenize((97, 98)) == [97, 98]
    assert own.tokenize("\ud800") == [0xFFFD]
    assert own.tokenize([{"role": "u", "content": "a"}]) == own.tokenize("<u>a")
    for wrong in ([1.5], [1, {"role": "u"}], [-1]):
        with pytest.raises(PlugPointError):
            own.tokenize(wrong)
    with pytest.raises(PlugPointError):
        await own.generate("")


async def test_a_prompt_has_the_special_tokens_that_it_says_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(tokenizer: Letters, text: str, **options: Any) -> list[int]:
        assert options == {"add_special_tokens": False}
        return [7]

    monkeypatch.setattr(Letters, "encode", encode)
    assert session().tokenize("ab") == session().tokenize([{"role": "u", "content": "a"}]) == [7]


def test_what_a_turn_says_as_an_engine_s_answer() -> None:
    turn = Turn(0, [1, 2], [3], [-0.5], "c", StopReason.LENGTH, (4, 6, 5))
    usual = {"finish_reason": {"type": "length"}, "prompt_tokens": 2, "completion_tokens": 1, "cached_tokens": 0}
    assert turn.meta_info == usual | {"weight_version": "6"}
    own_turn = Turn(
        0, [1, 2], [3], [-0.5], "c", StopReason.LENGTH, (), {"cached_tokens": 2, "weight_version": "theirs"}
    )
    assert own_turn.meta_info == usual | {"cached_tokens": 2, "weight_version": "0"}


async def test_a_chat_s_template_has_the_tools_and_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def template(tokenizer: Letters, conversation: Any, **options: Any) -> str:
        seen.append(options)
        return "x"

    monkeypatch.setattr(Letters, "apply_chat_template", template)
    tools, kwargs = [{"name": "calculate"}], {"thinks": False}
    session().tokenize([{"role": "u"}])
    session(tools=tools, apply_chat_template_kwargs=kwargs).tokenize([{"role": "u"}])
    always = {"tokenize": False, "add_generation_prompt": True}
    assert seen == [always, always | {"tools": tools} | kwargs]


def add(a: int, b: int = 1) -> int:
    return a + b


async def add_later(a: int) -> int:
    return a + 1


def hands_out(a: int) -> Any:
    return add_later(a)


def stops(a: int) -> int:
    raise StopIteration(a)


def fails(a: int) -> int:
    raise ValueError(a)


@pytest.mark.parametrize(("tool", "result"), [(add, 4), (add_later, 4), (hands_out, 4), (lambda a: (a,), [3])])
async def test_a_tool_is_called_as_it_is_written(tool: Any, result: Any) -> None:
    turns = Turns()
    assert await session(turns).call(tool, {"a": 3}) == result
    (call,) = turns.calls
    assert (call.arguments, call.may_repeat) == ({"a": 3}, False)
    assert call.name.endswith(tool.__name__)
    assert turns.ended == (result, "", True)
    await session(turns).call(tool, {"a": 3}, may_repeat=True)
    assert turns.calls[1].may_repeat


@pytest.mark.parametrize("tool", [fails, stops])
async def test_what_a_tool_raises_is_its_failure(tool: Any) -> None:
    turns = Turns()
    with pytest.raises(ToolFailed, match=tool.__name__):
        await session(turns).call(tool, {"a": 3}, timeout_s=60.0)
    assert turns.ended[0] is None


@pytest.mark.parametrize("arguments", [{"a": object()}, {"a": 2**70}, {1: 2}])
async def test_arguments_are_json_values(arguments: dict[Any, Any]) -> None:
    turns = Turns()
    with pytest.raises(PlugPointError):
        await session(turns).call(add, arguments)
    assert not turns.calls


async def test_half_a_character_in_an_argument_is_none() -> None:
    assert await session().call(lambda a: a, {"a": "x\ud83d"}) == "x\ufffd"


async def test_why_there_are_no_more_turns_is_told() -> None:
    turns = Turns()
    own = session(turns)
    assert own.failure is None
    turns.failure = ValueError()  # type: ignore[assignment]
    assert own.failure is turns.failure


async def test_slime_s_state_is_that_of_the_session() -> None:
    with session_of_process(own := session()):
        state, args = GenerateState(own.args), own.args
    assert (state.args, state.tokenizer) == (args, own.tokenizer)
    assert state.sampling_params["max_new_tokens"] == 7
    assert state.aborted is False
    own.aborted = True
    assert state.aborted is True
    state.reset()
    assert state.aborted is False
    with state.dp_rank_context() as rank:
        assert rank == 0
    assert not hasattr(state, "pendings")


def test_a_port_is_opened_once_and_where_it_is_asked_for() -> None:
    opened: list[int] = []

    def open_port() -> int:
        opened.append(len(opened) + 4000)
        return opened[-1]

    base = ArgsView({"sglang_router_port": 0, "stop": ["a"]})
    args = CallArgs(base, open_port)
    args.stop.append("b")
    assert (base.stop, opened) == (["a"], [])
    assert [args.sglang_router_port, args.sglang_router_port, opened] == [4000, 4000, [4000]]
    args.sglang_router_port = 5
    assert args.sglang_router_port == 5
    again = pickle.loads(pickle.dumps(CallArgs(base, open_port)))
    assert (type(again), again.sglang_router_port, again.stop, opened) == (ArgsView, 4001, ["a"], [4000, 4001])
    assert base.sglang_router_port == 0


async def test_a_loop_of_users_ends_with_what_runs_in_it() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def answers() -> int:
        return 7

    loop = UserLoop(1, "own")
    assert await loop.run(answers()) == 7
    waiting = loop.begin(waits())
    await loop.run(answers())
    loop.stop()
    await asyncio.to_thread(loop._thread.join, 20.0)
    assert (loop._thread.is_alive(), waiting.cancelled(), ended) == (False, True, ["waits"])
    with pytest.raises(EngineError):
        await loop.run(answers())


async def test_threads_without_a_session_have_that_of_the_process() -> None:
    with pytest.raises(PlugPointError):
        current_session()
    with session_of_process(own_session := session()), session_of_process(session()):
        assert current_session() is own_session
    with pytest.raises(PlugPointError):
        current_session()
    own_session.aborted = True
    own_session.reset()
    assert not own_session.aborted
    with pytest.raises(PlugPointError):
        await own_session.abort()


def test_a_turn_s_tokens_are_trained_ones_of_its_sample() -> None:
    turn = Turn(0, [1, 2], [3, 4], [-0.5, -0.25], "ab", StopReason.LENGTH, (4, 6), {"cached_tokens": 1})
    assert turn.meta_info == {
        "finish_reason": {"type": "length"}, "prompt_tokens": 2, "completion_tokens": 2, "cached_tokens": 1,
        "weight_version": "6",
    }  # fmt: skip
    sample = Sample(tokens=[1, 2])
    turn.add_to(sample)
    assert (sample.tokens, sample.response, sample.loss_mask) == ([1, 2, 3, 4], "ab", [1, 1])
    assert (sample.rollout_log_probs, sample.status, sample.weight_versions) == ([-0.5, -0.25], Status.TRUNCATED, ["6"])
    assert sample.prefix_cache_info.cached_tokens == 1
    bare = Turn(0, [1], [3], [-0.5], "a", StopReason.STOP, ()).meta_info
    assert (bare["weight_version"], bare["cached_tokens"]) == ("0", 0)
