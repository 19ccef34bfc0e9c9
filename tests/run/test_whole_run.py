"""One real run, looked at from every side: SGLang in Ray Serve, Megatron, NATS, and a producer from outside."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import torch

from actors.megatron.weights import tensor_bytes
from schemas.batches import BatchSealed
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from schemas.runs import FinishReason, RunFinished
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.app.cli.main import main
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.span import trace_id
from slime_events.core.telemetry.span_tree import SpanTree, trace_of
from slime_events.model.verify import verify
from storage.archive.reader import ArchiveReader
from storage.digests import tensor_digests, weights_digest
from storage.open_log import open_run_log
from tests.run.tiny import GROUPS, SAMPLES, of
from tests.run.whole import LESSON, STEPS, Finished

pytestmark = pytest.mark.real


def test_it_did_what_it_was_asked_for(finished: Finished) -> None:
    summary = finished.summary
    assert json.loads((finished.folder / "summary.json").read_text()) == summary
    assert (summary["phase"], summary["steps"], summary["weight_versions"]) == ("finished", STEPS, STEPS)
    assert len(finished.view.lines) == len(summary["rewards"]) == STEPS
    assert 0 < summary["reward_first"] < 1
    assert summary["staleness_max"] == 0
    assert summary["events"] == len(finished.events)
    assert summary["seconds_startup"] < summary["seconds_total"]
    assert summary["counts"]["groups_trained"] == STEPS * GROUPS
    ended = of(finished.events, RunFinished)
    assert [(end.reason, end.steps) for end in ended] == [(FinishReason.ALL_STEPS, STEPS)]


def test_nothing_is_left_behind(finished: Finished) -> None:
    assert finished.left == []


def test_the_log_folds_to_the_state_it_ended_with(finished: Finished) -> None:
    async def check() -> Any:
        async with open_run_log(finished.folder) as log:
            return await verify(log)

    verified = asyncio.run(check())
    assert verified.digest == of(finished.events, RunFinished)[0].state_digest
    assert verified.events == len(finished.events) - 1


def test_the_audit_finds_nothing(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(finished.folder), "--json"]) == 0
    checks = {check["name"]: check["counts"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["training"]["trained"] == STEPS * GROUPS * SAMPLES
    assert checks["batches"]["rewards not renormalised"] == 0
    assert checks["staleness"]["allowed"] == 0
    assert checks["files"]["verified"] > 0


def test_the_archive_is_the_log_byte_for_byte(finished: Finished) -> None:
    reader = ArchiveReader(str(finished.folder / "archive"), "whole")
    assert reader.closed
    archived = [(record.position, record.subject, record.data) for record in reader.records()]
    assert archived == [(recorded.position, recorded.subject, recorded.data) for recorded in finished.events]


def test_engine_and_trainer_agree_on_every_log_prob(finished: Finished) -> None:
    worst = [step.metrics["logprob_agreement_max"] for step in of(finished.events, StepCommitted)]
    assert len(worst) == STEPS
    assert max(worst) < 1e-4
    assert finished.summary["logprob_agreement_max"] == max(worst)


def test_the_users_grader_gave_the_rewards(finished: Finished) -> None:
    rewards = of(finished.events, RewardAssigned)
    completed = {event.sample: event for event in of(finished.events, RolloutCompleted)}
    assert {reward.sample for reward in rewards} == set(completed)
    assert all(reward.grader.endswith(":reward_func") and reward.detail["score"] == reward.value for reward in rewards)
    assert len({reward.grader_digest for reward in rewards}) == 1


def test_the_filter_kept_what_teaches(finished: Finished) -> None:
    accepted, rejected = of(finished.events, GroupAccepted), of(finished.events, GroupRejected)
    assert len(accepted) == STEPS * GROUPS
    assert rejected, "the demo's model always has groups that are all right or all wrong"
    assert all(len(set(group.rewards)) > 1 and len(group.samples) == SAMPLES for group in accepted)
    assert all(len(set(group.rewards)) == 1 and group.cause is RejectionCause.FILTER for group in rejected)
    assert {group.reason for group in rejected} <= {"zero_std_0.0", "zero_std_1.0"}


def test_at_staleness_0_every_token_is_of_the_weights_it_trains(finished: Finished) -> None:
    versions = {event.sample: {span.version for span in event.spans} for event in of(finished.events, RolloutCompleted)}
    for batch in of(finished.events, BatchSealed):
        assert {version for sample in batch.samples for version in versions[sample]} == {batch.step}


def test_every_version_is_what_was_published_and_what_the_engines_run(finished: Finished) -> None:
    published = {event.version: event for event in of(finished.events, WeightsPublished)}
    committed = {event.version: event.weights_digest for event in of(finished.events, StepCommitted)}
    activated = {event.version: event.digest for event in of(finished.events, WeightsActivated)}
    assert sorted(published) == list(range(STEPS + 1))
    assert {version: event.digest for version, event in published.items() if version} == committed
    assert activated.items() <= {version: event.digest for version, event in published.items()}.items()
    assert set(range(STEPS)) <= set(activated)
    assert len(set(committed.values())) == STEPS, "every step changes the weights"


def test_the_last_version_is_a_checkpoint_that_transformers_loads(finished: Finished) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    last = of(finished.events, WeightsPublished)[-1]
    model = AutoModelForCausalLM.from_pretrained(last.url, dtype=torch.float32)  # the trainer's own
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    tensors = (tensor_bytes(name, tensor) for name, tensor in model.state_dict().items() if name not in tied)
    digests = tensor_digests((name, (dtype, shape, data)) for name, dtype, shape, data in tensors)
    assert weights_digest(digests) == last.digest
    assert AutoTokenizer.from_pretrained(last.url).encode("1+1")


def test_prompts_from_outside_are_trained_on(finished: Finished) -> None:
    groups = finished.reply["groups"]
    assert finished.reply["accepted"] is True
    assert len(groups) == len(LESSON)
    submitted = {event.group: event for event in of(finished.events, PromptSubmitted)}
    assert [submitted[group].source.key for group in groups] == list(LESSON)
    decided = {event.group: event for kind in (GroupAccepted, GroupRejected) for event in of(finished.events, kind)}
    trained = {group: batch.step + 1 for batch in of(finished.events, BatchSealed) for group in batch.groups}
    for group in groups:
        assert isinstance(decided[group], GroupAccepted) == (group in trained)
    into = {trained[group] for group in groups if group in trained}
    assert into <= {3, 4}, "behind the prompts of the file that were drawn before they came"
    assert 3 in into


def test_one_prompts_trace_leads_from_submit_to_activate(finished: Finished) -> None:
    group = next(g for b in of(finished.events, BatchSealed) for g in b.groups if g in finished.reply["groups"])
    spans = [span for recorded in finished.events if (span := span_of(recorded.envelope)) is not None]
    (submit,) = trace_of(spans, trace_id("whole", group))
    assert (submit.span.name, submit.span.attributes["rl.source.path"]) == ("submit", "inbox")
    generated = _children(submit, "generate")
    assert len(generated) == SAMPLES
    assert all(len(_children(span, "grade")) == 1 for span in generated)
    (decide,) = _children(submit, "decide")
    (batch,) = _children(decide, "batch")
    assert batch.linked
    (train,) = _children(batch, "train")
    (publish_,) = _children(train, "publish")
    (activate,) = _children(publish_, "activate")
    assert activate.span.attributes["rl.weights.version"] == 3


def _children(tree: SpanTree, name: str) -> list[SpanTree]:
    return [child for child in tree.children if child.span.name == name]
