"""Plug-ins are unit-tested outside of a run, as slime's users do: with names of its modules replaced.

The shapes are those of slime's own contracts of plug-ins.
"""
# ruff: noqa: E402  there is no slime before its aliases are installed

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.errors import PlugPointError
from schemas.rollouts import Sampling
from serve_apps.rollouts.generate.session import Session, session_of_process
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.slime.aliases import install_slime_aliases
from tests.simulation.parts import Letters

install_slime_aliases()

from slime.rollout import rm_hub, sglang_rollout
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.data_source import RolloutDataSourceWithBuffer, pop_first
from slime.rollout.filter_hub import dynamic_sampling_filters
from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.rollout.sglang_rollout import generate_and_rm
from slime.utils import http_utils
from slime.utils.types import Sample

OWN = "tests.plug_points.test_outside_of_a_run"


class FakeState:
    """Replace slime's state, as a test of a plug-in does."""

    aborted = False
    tokenizer = Letters()

    def __init__(self, args: Any) -> None:
        self.args, self.semaphore, self.entered = args, asyncio.Semaphore(1), 0
        self.sampling_params = {"max_new_tokens": 4}
        self.group_sampling_seeds = [args.rollout_seed + place for place in range(args.n_samples_per_prompt)]

    @contextlib.contextmanager
    def dp_rank_context(self) -> Iterator[int]:
        yield 0

    def reset(self) -> None:
        pass


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> type[FakeState]:
    """Return the class that replaces GenerateState."""
    state_type: type[FakeState] = type("State", (FakeState,), {})
    monkeypatch.setattr(sglang_rollout, "GenerateState", state_type)
    return state_type


def of(**more: Any) -> SimpleNamespace:
    fields = {
        "partial_rollout": False,
        "mask_offpolicy_in_partial_rollout": False,
        "group_rm": False,
        "custom_generate_function_path": None,
        "sglang_enable_deterministic_inference": False,
        "rollout_seed": 7,
        "n_samples_per_prompt": 2,
        "sglang_router_ip": "10.0.0.1",
        "sglang_router_port": 3000,
    }
    return SimpleNamespace(**fields | more)


def done(sample: Any, text: str, reward: Any = 1.0) -> Any:
    sample.tokens, sample.response, sample.response_length = [1, 2, 3], text, 2
    sample.reward, sample.status = reward, Sample.Status.COMPLETED
    return sample


async def plain(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    return done(sample, "plain")


async def echoed(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    sample.metadata["evaluation"] = evaluation
    return done(sample, "told")


async def ungraded(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    return done(sample, "ungraded", None)


async def several(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    return [done(sample, "one", None), done(Sample(index=9), "two", 0.5)]


def make(args: Any, sample: Any = None, **more: Any) -> Any:
    return asyncio.run(generate_and_rm(args, sample or Sample(index=0, prompt="ab"), {"max_new_tokens": 4}, **more))


def test_the_replaced_generate_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_rollout, "generate", plain)
    assert make(of(), evaluation=False).response == "plain"


def test_a_generate_function_by_its_path_and_the_samples_own_first() -> None:
    args = of(custom_generate_function_path=f"{OWN}.plain")
    assert make(args).response == "plain"
    sample_made = make(args, Sample(index=0, prompt="ab", generate_function_path=f"{OWN}.echoed"), evaluation=True)
    assert (sample_made.response, sample_made.metadata["evaluation"]) == ("told", True)


@pytest.mark.parametrize("home", ["slime.rollout.sglang_rollout", "slime.utils.misc"])
def test_the_replaced_loader_is_asked(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    monkeypatch.setattr(f"{home}.load_function", lambda path: paths.append(path) or several)
    samples_ = make(of(custom_generate_function_path="nowhere.at_all", group_rm=True))
    assert [(each.response, each.reward) for each in samples_] == [("one", None), ("two", 0.5)]
    assert paths == ["nowhere.at_all"]


@pytest.mark.parametrize("home", ["slime.rollout.sglang_rollout", "slime.rollout.rm_hub"])
@pytest.mark.parametrize("in_a_run", [False, True])
async def test_the_replaced_grader_grades(home: str, in_a_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def one_reward(args: Any, sample: Any, **more: Any) -> float:
        return 0.25

    async def all_of_them(args: Any, samples: list[Any], **more: Any) -> list[float]:
        return [0.75 for _ in samples]

    monkeypatch.setattr(f"{home}.async_rm", one_reward)
    monkeypatch.setattr(f"{home}.batched_async_rm", all_of_them)
    turns: Any = None
    with contextlib.ExitStack() as stack:
        if in_a_run:
            stack.enter_context(session_of_process(Session(turns, None, Sampling(max_new_tokens=1), ArgsView({}))))
        alone = Sample(index=0, generate_function_path=f"{OWN}.ungraded")
        assert (await generate_and_rm(of(), alone, {})).reward == 0.25
        own = Sample(index=0, generate_function_path=f"{OWN}.several")
        assert [sample.reward for sample in await generate_and_rm(of(), own, {})] == [0.75, 0.5]
        group = [Sample(index=n, generate_function_path=f"{OWN}.ungraded") for n in range(2)]
        graded_group = await sglang_rollout.generate_and_rm_group(of(group_rm=True), group, {})
        assert [sample.reward for sample in graded_group] == [0.75, 0.75]


def test_a_finished_sample_is_left_and_an_aborted_one_gets_no_reward(state: type[FakeState]) -> None:
    finished = done(Sample(index=0), "before")
    assert make(of(custom_generate_function_path=f"{OWN}.echoed"), finished).response == "before"
    state.aborted = True
    left = make(of(custom_generate_function_path=f"{OWN}.echoed"))
    assert (left.status, left.response, left.reward) == (Sample.Status.ABORTED, "", None)
    group = [Sample(index=0)]
    assert asyncio.run(sglang_rollout.generate_and_rm_group(of(), group, {})) == group
    assert group[0].status is Sample.Status.PENDING


def test_the_hooks_of_args_are_called() -> None:
    args = of(custom_generate_function_path=f"{OWN}.plain", rollout_sample_hook_path=[f"{OWN}.hook"])
    assert make(args).response == "plain, hooked"


def hook(args: Any, sample: Any, **options: Any) -> None:
    sample.response += ", hooked"


def test_one_that_fails_cancels_its_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[int] = []

    async def one_sample(args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> Any:
        if sample.index == 0:
            await asyncio.sleep(0)
            raise RuntimeError("the first")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(sample.index)
            raise

    monkeypatch.setattr(sglang_rollout, "generate_and_rm", one_sample)
    with pytest.raises(RuntimeError, match="the first"):
        asyncio.run(sglang_rollout.generate_and_rm_group(of(), [Sample(index=0), Sample(index=1)], {}))
    assert cancelled == [1]


def test_a_group_has_seeds_and_session_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any]] = []

    async def one_sample(args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> Any:
        seen.append((sampling_params, sample.session_id))
        return done(sample, "x")

    monkeypatch.setattr(sglang_rollout, "generate_and_rm", one_sample)
    args = of(sglang_enable_deterministic_inference=True)
    asyncio.run(sglang_rollout.generate_and_rm_group(args, [Sample(), Sample()], {"top_p": 1.0}))
    assert [params for params, _ in seen] == [{"top_p": 1.0, "sampling_seed": 7}, {"top_p": 1.0, "sampling_seed": 8}]
    assert len({name for _, name in seen} - {None}) == 2
    seen.clear()
    asyncio.run(sglang_rollout.generate_and_rm_group(args, [Sample()], {}))
    assert [params for params, _ in seen] == [{"sampling_seed": 7}], "a smaller group has the first of them"


ANSWER = {
    "text": "cd",
    "meta_info": {"finish_reason": {"type": "stop"}, "weight_version": "5", "prompt_tokens": 2, "cached_tokens": 0}
    | {"output_token_logprobs": [(-0.5, 7, None), (-0.25, 8, None)]},
}


@pytest.mark.parametrize("home", ["slime.rollout.sglang_rollout", "slime.utils.http_utils"])
def test_generate_asks_the_router_by_the_replaced_post(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []

    async def post(url: str, payload: Any, **more: Any) -> Any:
        requests.append((url, payload))
        return ANSWER

    monkeypatch.setattr(f"{home}.post", post)
    sample = asyncio.run(sglang_rollout.generate(of(), Sample(prompt="ab"), {"max_new_tokens": 4}))
    prompt = Letters().encode("ab")
    ((url, payload),) = requests
    assert url == "http://10.0.0.1:3000/generate"
    assert (payload["input_ids"], payload["return_logprob"]) == (prompt, True)
    assert payload["sampling_params"] == {"max_new_tokens": 4}
    assert (sample.tokens, sample.rollout_log_probs) == ([*prompt, 7, 8], [-0.5, -0.25])
    assert (sample.response, sample.status, sample.weight_versions) == ("cd", Sample.Status.COMPLETED, ["5"])


def test_an_aborted_sample_goes_on_with_less_room_and_its_older_tokens_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[int] = []

    async def post(url: str, payload: Any, **more: Any) -> Any:
        rooms.append(payload["sampling_params"]["max_new_tokens"])
        return ANSWER

    monkeypatch.setattr(sglang_rollout, "post", post)
    sample = Sample(
        prompt="ab",
        tokens=[1, 2, 5],
        response="x",
        response_length=1,
        rollout_log_probs=[-1.0],
        weight_versions=["4"],
        reward=1.0,
        status=Sample.Status.ABORTED,
    )
    finished = make(of(partial_rollout=True, mask_offpolicy_in_partial_rollout=True), sample)
    assert (rooms, finished.tokens, finished.loss_mask) == ([3], [1, 2, 5, 7, 8], [0, 1, 1])
    assert (finished.weight_versions, finished.status) == (["4", "5"], Sample.Status.COMPLETED)
    full = Sample(tokens=[1, 2, 5], response_length=4, status=Sample.Status.ABORTED, reward=1.0)
    assert make(of(), full).status is Sample.Status.TRUNCATED
    assert len(rooms) == 1


def test_a_whole_step_and_an_evaluation_of_replaced_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sglang_rollout, "generate", echoed)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"input": f"q{row}"}) + "\n" for row in range(3)))
    args = of(
        prompt_data=f"{tmp_path}/rows.jsonl",
        rollout_batch_size=2,
        over_sampling_batch_size=None,
        dynamic_sampling_filter_path=None,
        rollout_sample_filter_path=f"{OWN}.without_the_last",
        rollout_all_samples_process_path=None,
        eval_datasets=[SimpleNamespace(name="own")],
    )
    output = sglang_rollout.generate_rollout(args, 0, RolloutDataSourceWithBuffer(args))
    assert isinstance(output, RolloutFnTrainOutput)
    assert [[sample.prompt for sample in group] for group in output.samples] == [["q0", "q0"], ["q1", "q1"]]
    assert [sample.remove_sample for group in output.samples for sample in group] == [False, True] * 2

    async def one_set(args: Any, rollout_id: int, dataset_cfg: Any) -> Any:
        return {dataset_cfg.name: {"rewards": [1.0], "truncated": [False], "samples": []}}

    monkeypatch.setattr(sglang_rollout, "eval_rollout_single_dataset", one_set)
    evaluated = sglang_rollout.generate_rollout(args, 0, None, evaluation=True)
    assert isinstance(evaluated, RolloutFnEvalOutput)
    assert evaluated.data["own"]["rewards"] == [1.0]


def without_the_last(args: Any, groups: list[list[Any]]) -> None:
    for group in groups:
        group[-1].remove_sample = True


def test_surplus_groups_come_from_the_replaced_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    async def one_group(args: Any, group: list[Any], sampling_params: Any, evaluation: bool = False) -> Any:
        return [done(group[0], "x")] if group[0].index == 0 else await asyncio.Event().wait()

    async def abort(args: Any, rollout_id: int) -> Any:
        return [["given back"]]

    monkeypatch.setattr(sglang_rollout, "generate_and_rm_group", one_group)
    args = of(
        rollout_batch_size=1,
        over_sampling_batch_size=2,
        dynamic_sampling_filter_path=None,
        rollout_sample_filter_path=None,
        rollout_all_samples_process_path=None,
    )

    def draw(count: int) -> list[list[Any]]:
        return [[Sample(index=n)] for n in range(count)]

    output, back = asyncio.run(sglang_rollout.generate_rollout_async(args, 0, draw))
    assert ([group[0].index for group in output.samples], back) == ([0], [])
    monkeypatch.setattr(sglang_rollout, "abort", abort)
    assert asyncio.run(sglang_rollout.generate_rollout_async(args, 0, draw))[1] == [["given back"]]


def test_the_replaced_parts_of_the_graders_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sample(response=r"\boxed{3}", label="4", metadata={})
    args = of(rm_type="math", custom_rm_path=None)
    assert asyncio.run(rm_hub.async_rm(args, sample)) == 0
    monkeypatch.setattr(rm_hub, "grade_answer_verl", lambda response, label: True)
    monkeypatch.setattr(rm_hub, "f1_score", lambda response, label: (0.5, 1.0, 1.0))
    monkeypatch.setattr(rm_hub, "compute_gpqa_reward", lambda response, label, metadata: response)
    monkeypatch.setattr(rm_hub, "load_function", lambda path: own_rm)
    assert asyncio.run(rm_hub.async_rm(args, sample)) == 1
    assert asyncio.run(rm_hub.async_rm(of(rm_type="f1", custom_rm_path=None), sample)) == 0.5
    assert asyncio.run(rm_hub.async_rm(of(rm_type="boxed_gpqa", custom_rm_path=None), sample)) == "3"
    named = of(rm_type=None, custom_rm_path="nowhere.at_all")
    assert asyncio.run(rm_hub.async_rm(named, sample)) == 0.125
    assert asyncio.run(rm_hub.batched_async_rm(named, [sample, sample])) == [0.125, 0.125]


async def own_rm(args: Any, samples: Any, **more: Any) -> Any:
    return [0.125 for _ in samples] if isinstance(samples, list) else 0.125


def test_the_state_itself_outside_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    loaded: list[Any] = []
    monkeypatch.setattr(
        sglang_rollout, "load_tokenizer", lambda path, **how: loaded.append(how) or f"tokenizer of {path}"
    )
    args = of(hf_checkpoint="model", rollout_temperature=0.5, rollout_max_response_len=9)
    state = sglang_rollout.GenerateState(args)
    assert state.tokenizer == "tokenizer of model"
    assert loaded == [{"trust_remote_code": True}], "as slime asks whatever has replaced it"
    fixed = {"no_stop_trim": True, "spaces_between_special_tokens": False}
    assert state.sampling_params == {"temperature": 0.5, "max_new_tokens": 9} | fixed
    assert state.group_sampling_seeds == [7, 8]
    state.aborted = True
    assert sglang_rollout.GenerateState(args).aborted
    assert make(of()).status is Sample.Status.ABORTED
    state.reset()
    assert not sglang_rollout.GenerateState(args).aborted
    with pytest.raises(PlugPointError, match="hf_checkpoint"):
        _ = sglang_rollout.GenerateState(of()).tokenizer


def test_signatures_and_filters_are_slimes() -> None:
    taken = inspect.signature(sglang_rollout.generate_rollout).parameters
    assert (tuple(taken), taken["evaluation"].default) == (("args", "rollout_id", "data_source", "evaluation"), False)
    assert tuple(inspect.signature(pop_first).parameters) == ("args", "rollout_id", "buffer", "num_samples")
    assert tuple(inspect.signature(RolloutDataSourceWithBuffer.__init__).parameters)[:2] == ("self", "args")
    source = RolloutDataSourceWithBuffer(
        SimpleNamespace(prompt_data=None, buffer_filter_path=None, n_samples_per_prompt=1)
    )
    source.add_samples([[Sample(index=0)], [Sample(index=1)]])
    assert [group[0].index for group in pop_first(None, None, source.buffer, 1)] == [0]
    for name in ("check_reward_nonzero_std", "check_reward_nonzero_std_with_fallback"):
        keeps = getattr(dynamic_sampling_filters, name)
        assert tuple(inspect.signature(keeps).parameters)[:2] == ("args", "samples")
        fanned_out = [[Sample(reward=1.0), Sample(reward=1.0)], [Sample(reward=0.0)]]
        for group, kept in ((fanned_out, True), (fanned_out[:1], False)):
            verdict = keeps(SimpleNamespace(reward_key=None), group)
            assert isinstance(verdict, DynamicFilterOutput)
            assert bool(verdict.keep) is kept
            assert verdict.reason == (None if kept else "zero_std_1.0")


def test_a_get_outside_of_a_run_is_a_plain_request() -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"pages": [1, 2]}')

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        answer = asyncio.run(http_utils.get(f"http://127.0.0.1:{server.server_port}/search"))
    assert answer == {"pages": [1, 2]}
