"""slime's loop within a rollout function: which groups a step gets, in which order, and what becomes of the others."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.errors import PlugPointError
from serve_apps.rollouts.generate.session import CURRENT
from serve_apps.rollouts.rollout_function.slime import loop as slime_loop
from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.sample import Sample, Status
from slime_events.plugins.slime.aliases import install_slime_aliases

install_slime_aliases()
ROLLOUT = importlib.import_module("slime.rollout.sglang_rollout")
FILTER: dict[int, DynamicFilterOutput] = {}
"""Verdicts by index; others are kept."""
CALLED: list[Any] = []


def keep(args: Any, group: list[Sample]) -> DynamicFilterOutput:
    return FILTER.get(group[0].index or 0, DynamicFilterOutput(keep=True))


def noted_filter(args: Any, groups: list[Any]) -> None:
    CALLED.append(("kept", [group[0].index for group in groups]))


def noted_all(args: Any, groups: list[Any], data_source: Any) -> None:
    CALLED.append(("all", [group[0].index for group in groups], callable(data_source)))


class FunctionSession:
    """Notes what is asked of it; `abort` ends what hangs."""

    of_function = True

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.aborting = asyncio.Event()

    async def abort(self) -> None:
        self.calls.append("abort")
        self.aborting.set()

    def reset(self) -> None:
        self.calls.append("reset")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[FunctionSession]:
    function_session = FunctionSession()

    async def own_group(args: Any, group: list[Sample], params: Any, *, evaluation: bool) -> list[Sample]:
        assert (params, evaluation) == ({"top_p": 1.0}, False)
        index = group[0].index or 0
        for _ in range(args.takes.get(index, 0)):
            await asyncio.sleep(0)
        if index in args.hangs:
            await function_session.aborting.wait()
            if args.hangs[index] is None:
                raise ValueError("it ended so")
            group[0].response, group[0].status = args.hangs[index], Status.ABORTED
        return group

    state = SimpleNamespace(sampling_params={"top_p": 1.0}, reset=function_session.reset)
    monkeypatch.setattr(ROLLOUT, "generate_and_rm_group", own_group)
    monkeypatch.setattr(ROLLOUT, "GenerateState", lambda args: state)
    FILTER.clear()
    CALLED.clear()
    before = CURRENT.set(function_session)  # type: ignore[arg-type]
    yield function_session
    CURRENT.reset(before)
    FILTER.clear()
    CALLED.clear()


class Source:
    """Groups numbered as they are drawn."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.back: list[Any] = []

    def get_samples(self, count: int) -> list[list[Sample]]:
        first = sum(self.indices)
        self.indices.append(count)
        return [[Sample(index=number)] for number in range(first, first + count)]

    def add_samples(self, groups: list[Any]) -> None:
        self.back += groups


def arguments(**fields: Any) -> Any:
    usual = {
        "rollout_batch_size": 2, "over_sampling_batch_size": None, "partial_rollout": False, "takes": {}, "hangs": {},
        "dynamic_sampling_filter_path": None, "rollout_sample_filter_path": None,
        "rollout_all_samples_process_path": None,
    }  # fmt: skip
    return SimpleNamespace(**usual | fields)


async def step(source: Source, **fields: Any) -> tuple[list[int], dict[str, Any], list[Any]]:
    output, aborted = await slime_loop.generate_rollout_async(arguments(**fields), 7, source.get_samples)
    return [group[0].index for group in output.samples], output.metrics or {}, aborted


async def test_a_step_has_the_first_that_end_in_the_order_that_they_were_drawn(session: FunctionSession) -> None:
    source = Source()
    kept, metrics, aborted = await step(source, over_sampling_batch_size=4, takes={0: 9}, hangs={1: "", 3: ""})
    assert (kept, metrics, aborted, source.indices) == ([0, 2], {}, [], [4])
    assert session.calls == ["abort", "reset"]
    assert len(asyncio.all_tasks()) == 1


async def test_groups_that_became_more_samples_are_in_the_order_that_they_were_drawn_too(
    session: FunctionSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order them by the first of the samples that their first became."""
    assert (await step(Source(), takes={0: 9}))[0] == [0, 1]

    async def several(args: Any, group: list[Sample], params: Any, *, evaluation: bool) -> list[list[Sample]]:
        index = group[0].index or 0
        await asyncio.sleep(0.01 * (2 - index))
        return [[Sample(index=index), Sample(index=9 - index)], [Sample(index=7 - index)]]

    monkeypatch.setattr(ROLLOUT, "generate_and_rm_group", several)
    output, _ = await slime_loop.generate_rollout_async(arguments(rollout_batch_size=3), 7, Source().get_samples)
    assert [group[0][0].index for group in output.samples] == [0, 1, 2]


async def test_what_was_under_way_is_given_back_where_that_is_asked_for(session: FunctionSession) -> None:
    source = Source()
    hangs = {2: "a", 3: "", 4: "b", 5: None}
    _, _, aborted = await step(source, over_sampling_batch_size=6, partial_rollout=True, hangs=hangs)
    assert sorted(group[0].index for group in aborted) == [2, 3, 4]
    begun = {group[0].index: group[0].metadata for group in aborted}
    assert begun == {2: {"start_rollout_id": 7}, 3: {}, 4: {"start_rollout_id": 7}}


async def test_the_step_that_a_sample_was_begun_in_stays(session: FunctionSession) -> None:
    class Again(Source):
        def get_samples(self, count: int) -> list[list[Sample]]:
            groups = super().get_samples(count)
            groups[-1][0].metadata = {"start_rollout_id": 3}
            groups[-2][0].metadata = [1]
            return groups

    _, _, aborted = await step(Again(), over_sampling_batch_size=4, partial_rollout=True, hangs={2: "a", 3: "b"})
    assert sorted(str(group[0].metadata) for group in aborted) == ["[1]", "{'start_rollout_id': 3}"]


async def test_for_what_a_filter_drops_others_are_drawn(session: FunctionSession) -> None:
    FILTER[0] = DynamicFilterOutput(keep=False, reason="x")
    FILTER[2] = DynamicFilterOutput(keep=False)
    source = Source()
    kept, metrics, _ = await step(source, dynamic_sampling_filter_path=f"{__name__}:keep")
    assert (kept, metrics, source.indices) == ([1, 3], {"rollout/dynamic_filter/drop_x": 1}, [2, 2])
    FILTER[2] = DynamicFilterOutput(keep=True)
    source = Source()
    kept, _, _ = await step(source, dynamic_sampling_filter_path=f"{__name__}:keep", over_sampling_batch_size=3)
    assert (kept, source.indices) == ([1, 2], [3])


async def test_a_group_may_be_kept_for_want_of_others(session: FunctionSession) -> None:
    FILTER.update({number: DynamicFilterOutput(keep=False, keep_when_insufficient=True) for number in range(3)})
    source = Source()
    kept, _, _ = await step(
        source, dynamic_sampling_filter_path=f"{__name__}:keep", over_sampling_batch_size=3, takes={1: 4, 2: 8}
    )
    assert (kept, source.indices) == ([1, 2], [3])


async def test_functions_of_a_step_see_kept_groups_and_all_of_them(session: FunctionSession) -> None:
    FILTER[1] = DynamicFilterOutput(keep=False)
    await step(
        Source(),
        over_sampling_batch_size=4,
        takes={0: 6, 1: 4, 2: 2, 3: 9},
        dynamic_sampling_filter_path=f"{__name__}:keep",
        rollout_sample_filter_path=f"{__name__}:noted_filter",
        rollout_all_samples_process_path=f"{__name__}:noted_all",
    )
    assert CALLED == [("kept", [0, 2]), ("all", [0, 1, 2], True)]


async def test_a_rollout_function_calls_it_as_slime_s_loop(session: FunctionSession) -> None:
    source = Source()
    args = arguments(over_sampling_batch_size=3, partial_rollout=True, hangs={2: "a"})
    output = await asyncio.to_thread(slime_loop.generate_rollout, args, 7, source)
    assert [group[0].index for group in output.samples] == [0, 1]
    assert [group[0].index for group in source.back] == [2]
    source = Source()
    await asyncio.to_thread(slime_loop.generate_rollout, arguments(), 7, source)
    assert source.back == []
    session.of_function = False
    with pytest.raises(PlugPointError):
        slime_loop.generate_rollout(arguments(), 7, Source())


ROWS = [SimpleNamespace(prompt=f"p{number}", label=str(number), metadata={"n": number}) for number in range(2)]


async def test_each_set_of_an_evaluation_has_settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    calls: list[Any] = []

    def rows(*args: Any, **how: Any) -> list[Any]:
        read.append((args, how))
        return ROWS

    async def answer(args: Any, sample: Sample, params: dict[str, Any], evaluation: bool) -> Any:
        calls.append((sample.index, sample.prompt, sample.label, sample.metadata, params, evaluation))
        sample.reward = {"score": float(sample.index or 0), "other": -1.0} if sample.index else 5.0
        sample.status = Status.TRUNCATED if sample.index == 1 else Status.COMPLETED
        return [sample, sample] if sample.index == 3 else sample

    usual = {"temperature": 1.0, "top_k": -1, "stop": ["z"]}
    state = SimpleNamespace(tokenizer="own", sampling_params=usual)
    monkeypatch.setattr(ROLLOUT, "GenerateState", lambda args: state)
    monkeypatch.setattr(importlib.import_module("slime.utils.data"), "Dataset", rows)
    monkeypatch.setattr(ROLLOUT, "generate_and_rm", answer)
    args = SimpleNamespace(
        eval_prompt_data=["held", "h.jsonl"], n_samples_per_eval_prompt=2, eval_temperature=0.5, eval_top_k=4,
        eval_max_prompt_len=None, rollout_max_prompt_len=9, input_key="text", metadata_key="meta", label_key="label",
        apply_chat_template=True, apply_chat_template_kwargs={"a": 1}, eval_reward_key=None, reward_key="score",
        eval_input_key=None,
    )  # fmt: skip
    output, back = await slime_loop.eval_rollout(args, 3)
    held = output.data["held"]
    ((read_args, how),) = read
    assert (read_args, back) == (("h.jsonl", "own"), [])
    assert (how["max_length"], how["prompt_key"], how["metadata_key"]) == (9, "text", "meta")
    assert (how["apply_chat_template"], how["apply_chat_template_kwargs"]) == (True, {"a": 1})
    assert [call[:4] for call in calls] == [
        (index, f"p{index // 2}", str(index // 2), {"n": index // 2}) for index in range(4)
    ]
    assert calls[0][4:] == ({**usual, "temperature": 0.5, "top_k": 4}, True)
    assert usual == {"temperature": 1.0, "top_k": -1, "stop": ["z"]}
    assert held["rewards"] == [5.0, 1.0, 2.0, 3.0, 3.0]
    assert held["truncated"] == [False, True, False, False, False]
    assert [sample.index for sample in held["samples"]] == [0, 1, 2, 3, 3]
    args.eval_reward_key, args.eval_max_prompt_len, args.n_samples_per_eval_prompt = "other", 5, 1
    other = (await slime_loop.eval_rollout(args, 3))[0].data["held"]
    assert (other["rewards"], read[1][1]["max_length"]) == ([5.0, -1.0], 5)
    args.eval_reward_key = args.reward_key = None
    whole = (await slime_loop.eval_rollout(args, 3))[0].data["held"]["rewards"]
    assert whole == [5.0, {"score": 1.0, "other": -1.0}]
