"""Each of slime's examples makes the tokens, masks, rewards and turns that its user expects, also after a crash."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from schemas.arrays import pack_log_probs, unpack
from schemas.evals import EvalCompleted
from schemas.groups import GroupRejected
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed, StopReason
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded, TurnRole
from slime_events.analysis.audit.audit import Audit
from tests.harness.users.examples.stage import END, Played, Stage
from tests.simulation.crash import Crash, Fate, Half


@pytest.fixture(params=[None, 5], ids=["whole", "crashed"])
def fate(request: pytest.FixtureRequest) -> Fate:
    """Return an engine's end after a stored append, before the answer. A busy machine makes few, larger appends."""
    return Fate([Crash(request.param, Half.AFTER, role="engine0")] if request.param else [])


def all_went_well(played: Played) -> list[RolloutCompleted]:
    """The samples; none failed anywhere, and the step was trained."""
    assert played.run.fate.exhausted
    assert not played.of(RolloutFailed)
    assert not played.of(RewardFailed)
    assert len(played.of(StepCommitted)) == 1
    done = played.of(RolloutCompleted)
    assert len(played.of(RewardAssigned)) == len(done)
    return done


def rewards(played: Played) -> dict[str, float]:
    return {event.sample: event.value for event in played.of(RewardAssigned)}


def roles(played: Played, sample: str) -> list[TurnRole]:
    return [turn.role for turn in played.of(TurnRecorded, sample=sample)]


async def test_the_functions_of_the_guide(stage: Stage, fate: Fate) -> None:
    flags = (
        "--custom-generate-function-path guided:my_generate --custom-rm-path guided:my_reward_func "
        "--dynamic-sampling-filter-path guided:my_filter"
    )
    rows = [{"prompt": f"{number}+1", "label": number + 1} for number in range(6)]

    def says(text: str) -> str:
        number = int(text[0])
        return f"it is {number + 1 + number % 2}" + END

    played = await stage.play("guide", flags, says, rows, fate=fate)
    done = all_went_well(played)
    assert all(event.attributes == {"truncated": False} and event.loss_mask is None for event in done)
    assert {(event.group[-1], rewards(played)[event.sample]) for event in done} >= {
        ("0", 1.0),
        ("1", 0.0),
        ("2", 1.0),
    }
    assert [event.group[-1] for event in played.of(GroupRejected)] == ["1"]


def searcher(text: str) -> str:
    if "<information>" in text:
        return "I know.<answer>paris!</answer>" + END
    if "Second" in text:
        return "<answer>Rome</answer>" + END
    return "Let me look.<search>capital of France</search> and more" + END


QUESTIONS = [
    {"prompt": "First: what is the capital of France?", "label": {"ground_truth": {"target": ["Paris", "paris"]}}},
    {"prompt": "Second: what is the capital of France?", "label": {"ground_truth": {"target": ["Paris"]}}},
]
SEARCH = (
    "--custom-generate-function-path generate_with_search.generate --custom-rm-path generate_with_search.reward_func"
)


async def test_search_r1(stage: Stage, fate: Fate) -> None:
    played = await stage.play("search_r1", SEARCH, searcher, QUESTIONS, fate=fate)
    for done in all_went_well(played):
        whole = await played.trajectory(done)
        texts = await played.trained_text(done)
        if done.group.endswith("0"):
            searched = "Let me look.<search>capital of France</search> and more" + END
            assert texts == [searched, "I know.<answer>paris!</answer>" + END]
            assert "<information>Doc 1: Paris is the capital of France.\nDoc 2: France" in done.text
            assert rewards(played)[done.sample] == 1.0
            assert roles(played, done.sample) == [TurnRole.ASSISTANT] * 2
        else:
            assert texts == ["<answer>Rome</answer>" + END]
            assert rewards(played)[done.sample] == 0.0
        trained = whole.loss_mask.tolist() if whole.loss_mask is not None else [1] * whole.length
        assert all((value < 0) == bool(bit) for value, bit in zip(whole.log_probs.tolist(), trained, strict=True))


async def test_search_r1_cuts_by_text_as_its_file_of_settings_says(stage: Stage) -> None:
    played = await stage.play("search_r1", f"{SEARCH} --custom-config-path search.yaml", searcher, QUESTIONS)
    for done in all_went_well(played):
        if done.group.endswith("0"):
            searched = "Let me look.<search>capital of France</search>"
            assert await played.trained_text(done) == [searched, "I know.<answer>paris!</answer>"]
            assert "Doc 2" not in done.text
            whole = await played.trajectory(done)
            mask = whole.loss_mask.tolist() if whole.loss_mask is not None else []
            assert sum(mask) == sum(value < 0 for value in whole.log_probs.tolist()), "found where the turns had them"


def calculator(text: str) -> str:
    last = text.rpartition("<interpreter>\n")[2]
    if "<interpreter>" in text:
        return rf"so Answer: \boxed{{{last.partition(chr(10))[0]}}}" + END
    question = text.partition("user\n")[2].partition(END)[0]
    call = {"name": "code_interpreter", "arguments": {"code": f"print({question})"}}
    return f"Let me compute.\n<tool_call>{json.dumps(call)}</tool_call>" + END


async def test_retool(stage: Stage, fate: Fate) -> None:
    flags = (
        "--custom-generate-function-path generate_with_retool.generate "
        "--custom-rm-path generate_with_retool.reward_func --reward-key score"
    )
    rows = [{"prompt": "17*3", "label": "51"}, {"prompt": "2**10", "label": "1000"}]
    played = await stage.play("retool", flags, calculator, rows, fate=fate)
    details = {event.sample: event.detail for event in played.of(RewardAssigned)}
    for done in all_went_well(played):
        right = done.group.endswith("0")
        assert done.attributes["tool_call_count"] == 1
        assert done.attributes["payload_has_system"] is True
        assert details[done.sample]["pred"] == ("51" if right else "1024")
        assert rewards(played)[done.sample] == pytest.approx(1.0 if right else -1.05)
        texts = await played.trained_text(done)
        assert len(texts) == 2
        assert texts[0].startswith("Let me compute.")
        assert texts[1].startswith("so Answer:")
        assert done.stop is StopReason.STOP


def agents(text: str) -> str:
    if "Solve:" in text:
        return r"hm</think>so \boxed{4}" + END
    if "Improve:" in text:
        return r"better</think>it is \boxed{4}" + END
    return "two</think>Judgment: 2" + END


async def test_multi_agent(stage: Stage, fate: Fate) -> None:
    flags = (
        "--custom-generate-function-path rollout_with_multi_agents.generate_with_multi_agents --rm-type math "
        "--apply-chat-template"
    )
    rows = [{"prompt": "2+2", "label": "4"}, {"prompt": "2+3", "label": "5"}]
    played = await stage.play("multi_agent", flags, agents, rows, fate=fate)
    done = all_went_well(played)
    assert len(done) == 4 * 5, "two solvers, two rewriters and a selector of each rollout"
    by_rollout = Counter(event.rollout or event.sample for event in done)
    assert set(by_rollout.values()) == {5}
    for event in done:
        right = event.group.endswith("0")
        assert rewards(played)[event.sample] == pytest.approx(1.2 if right else 0.0)
        assert "reason_content" not in event.attributes or event.attributes["reason_content"] is None
        assert event.attributes["response_content"] in (r"so \boxed{4}", r"it is \boxed{4}", "Judgment: 2")
        assert event.loss_mask is None
    prompts = Counter(event.prompt_text.partition("user\n")[2].partition(":")[0] for event in done)
    assert prompts == {"Solve": 8, "Improve": 8, "Select": 4}
    assert len(played.of(TurnRecorded)) == 20


def clerk(text: str) -> str:
    order = text.rpartition("cancel my order ")[2][:2]
    if order == "A1" or "cancelled" in text:
        return "It is done, goodbye." + END
    return f'<tool_call>{{"name": "cancel", "arguments": {{"order": "{order}"}}}}</tool_call>' + END


async def test_tau_bench(stage: Stage, fate: Fate) -> None:
    flags = "--custom-generate-function-path generate_with_tau.generate"
    rows: list[dict[str, Any]] = [{"index": task, "metadata": {"user_id": f"user{task}"}} for task in (0, 1)]
    played = await stage.play("tau_bench", flags, clerk, rows, keys="--input-key index", fate=fate)
    for done in all_went_well(played):
        task = int(done.group[-1])
        assert rewards(played)[done.sample] == (1.0 if task == 0 else 0.0), "the environment's, no grader's"
        assert done.metadata["task"]["user_id"] == f"user{task}"
        assert done.metadata["reward_info"] == {"actions": 2 - task}
        texts = await played.trained_text(done)
        assert len(texts) == 2 - task
        assert texts[-1].startswith("It is done, goodbye." + END)
        whole = await played.trajectory(done)
        assert "###STOP###" in played.tokenizer.decode(whole.tokens.tolist())
        assert "You work in a shop" in done.prompt_text
        assert roles(played, done.sample) == [TurnRole.ASSISTANT] * (2 - task)


async def test_a_log_prob_that_no_weights_gave_is_found(stage: Stage) -> None:
    """The newline after tau-bench's answers is trained on, and has no log-prob: the trainer takes its own."""
    rows = [{"index": 0}, {"index": 1}]
    flags = "--custom-generate-function-path generate_with_tau.generate"
    played = await stage.play("tau_bench", flags, clerk, rows, keys="--input-key index")
    auditor = Audit("sim", fetch=unpack, files=False)
    for recorded in played.run.log.records:
        event = recorded.envelope.event
        if isinstance(event, RolloutCompleted):
            log_probs = unpack(event.log_probs).copy()
            log_probs[event.spans[0].end] = -0.5
            event = replace(event, log_probs=pack_log_probs(log_probs))
        auditor.apply(replace(recorded, envelope=replace(recorded.envelope, event=event)))
    assert sum("do not cover" in finding.wrong for finding in auditor.finish().findings) == 4


def solver(text: str) -> str:
    if "right, now answer" in text:
        return "so it is = 7" + END
    answer = "7" if "is wrong" in text else "6"
    return f'<tool_call>{{"name": "calc_score", "arguments": {{"answer": "{answer}"}}}}</tool_call>' + END


async def test_geo3k_with_several_turns(stage: Stage, fate: Fate) -> None:
    flags = (
        "--custom-generate-function-path rollout.generate --custom-rm-path rollout.reward_func "
        "--custom-config-path geo3k.yaml --apply-chat-template --rollout-max-response-len 600"
    )
    messages = [{"role": "user", "content": "How long is the side?"}]
    rows = [{"prompt": messages, "label": "7"}, {"prompt": messages, "label": "6"}]
    played = await stage.play("geo3k_text", flags, solver, rows, fate=fate)
    for done in all_went_well(played):
        turns = 3 if done.group.endswith("0") else 2
        assert roles(played, done.sample) == [TurnRole.ASSISTANT] * turns
        assert rewards(played)[done.sample] == float(turns == 3)
        assert len(await played.trained_text(done)) == turns
        assert ("score 0.0: 6 is wrong" in done.text) is (turns == 3)
        assert "<|im_start|>tool\nscore" in done.text


async def test_fan_out_with_a_reward_for_the_group(stage: Stage, fate: Fate) -> None:
    flags = (
        "--custom-generate-function-path generate_fan_out.generate_segments "
        "--custom-rm-path generate_fan_out.group_reward --group-rm"
    )

    def says(text: str) -> str:
        return "it is 4" + END if "So far" in text else "a first thought that is cut off somewhere" + END

    rows = [{"prompt": "2+2?", "label": 4}, {"prompt": "2+3?", "label": 5}]
    played = await stage.play("fan_out", flags, says, rows, fate=fate)
    done = all_went_well(played)
    assert Counter(event.metadata["segment"] for event in done) == {0: 4, 1: 4}
    for event in done:
        assert rewards(played)[event.sample] == float(event.group.endswith("0"))
        assert event.stop is (StopReason.LENGTH if event.metadata["segment"] == 0 else StopReason.STOP)
        assert ("So far: a first thought" in event.prompt_text) is (event.metadata["segment"] == 1)


@pytest.fixture
async def teacher() -> AsyncIterator[str]:
    """An SGLang server that only scores: -0.125 times the place of a token."""

    async def score(request: web.Request) -> web.Response:
        body = await request.json()
        assert (body["return_logprob"], body["logprob_start_len"]) == (True, 0)
        scored = [[-0.125 * place if place else None, token, None] for place, token in enumerate(body["input_ids"])]
        return web.json_response({"text": "", "meta_info": {"input_token_logprobs": scored}})

    app = web.Application()
    app.router.add_post("/generate", score)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/generate"
    await runner.cleanup()


async def test_on_policy_distillation(stage: Stage, teacher: str) -> None:
    names = "slime.rollout.on_policy_distillation"
    flags = (
        f"--use-opd --opd-type sglang --opd-kl-coef 1.0 --rm-url {teacher} --custom-rm-path {names}.reward_func "
        f"--custom-reward-post-process-path {names}.post_process_rewards"
    )
    rows = [{"prompt": "1+1", "label": "2"}, {"prompt": "10+10", "label": "20"}]
    played = await stage.play(".", flags, lambda text: "hm" + END, rows)
    graded = {event.sample: event for event in played.of(RewardAssigned)}
    for done in all_went_well(played):
        of_teacher = graded[done.sample].teacher_log_probs
        assert of_teacher is not None
        places = range(done.prompt_length, done.prompt_length + done.length)
        assert unpack(of_teacher).tolist() == [-0.125 * place for place in places]
        assert graded[done.sample].value == 0.0


async def test_an_evaluation_of_several_tasks(stage: Stage) -> None:
    def says(text: str) -> str:
        return ("OH" if text == "1+1" else rf"so \boxed{{{len(text)}}} and The answer is B") + END

    rows = [{"prompt": "train", "label": "5"}] * 2
    flags = "--eval-config multi_task.yaml --eval-interval 1 --rm-type math"
    played = await stage.play("eval_multi_task", flags, says, rows)
    last = {event.dataset: event for event in played.of(EvalCompleted)}
    assert set(last) == {"aime", "gpqa", "shout"}
    graded = {event.sample: event for event in played.of(RewardAssigned)}
    for event in played.of(RolloutCompleted):
        reward = graded[event.sample]
        if "aime" in event.sample:
            assert reward.grader == "boxed_math"
        elif "gpqa" in event.sample:
            assert (reward.grader, reward.value) == ("gpqa", 1.0)
        elif "shout" in event.sample:
            assert reward.grader.endswith("own_reward_") or ":shouted" in reward.grader
            assert event.length <= 5
    assert not played.of(RewardFailed)
