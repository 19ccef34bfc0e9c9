"""The plug points of slime's, a user's file for each, and what has to stand in the log because of it."""

from __future__ import annotations

from collections import defaultdict

import pytest

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.prompts import PromptSubmitted, Purpose
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutReturned
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded
from schemas.weights import WeightsPublished
from tests.harness.users.trial import Case, Ran

SAMPLES = 4
LEVEL = "--custom-advantage-function-path advantage.level"
"""Advantages of 0.5 at ratio 1: a step's loss is known beforehand."""
KEEP = "--dynamic-sampling-filter-path group_filter.keep"
"""Lets answers pass that are all wrong."""


def scored(ran: Ran) -> None:
    """The user's dict is kept, and its entry is the reward."""
    rewards = ran.of(RewardAssigned)
    assert rewards
    assert all(event.grader.endswith(":score") and event.value == event.detail["score"] for event in rewards)
    assert {event.value for event in rewards} <= {0.0, 0.25, 1.0, 1.25}
    assert max(event.value for event in rewards) == 1.25, "with what --custom-config-path adds"


def taught(ran: Ran) -> None:
    """The student is half a nat above its teacher."""
    first, *_ = ran.of(StepCommitted)
    assert first.metrics["opd_reverse_kl"] == pytest.approx(0.5, abs=1e-3)
    assert {event.value for event in ran.of(RewardAssigned)} == {0.0}


def ranked(ran: Ran) -> None:
    """Rewards are ranks in their group, in evaluations of one sample each 1."""
    groups: dict[str, list[float]] = defaultdict(list)
    for event in ran.of(RewardAssigned):
        groups[event.group].append(event.value)
    assert {len(values) for values in groups.values()} == {1, SAMPLES}
    whole = [pytest.approx([n / (SAMPLES - 1) for n in range(SAMPLES)]), [1.0]]
    assert all(sorted(values) in whole for values in groups.values())


def judged(ran: Ran) -> None:
    """Rewards follow the length of the response. A process has a single reward model."""
    texts = {event.sample: event.text for event in ran.of(RolloutCompleted)}
    rewards = ran.of(RewardAssigned)
    assert len(ran.called("compute_reward")) == len(rewards) > len(ran.called("made"))
    assert all(event.grader.endswith(":CustomRewardModel") for event in rewards)
    assert all(event.value == pytest.approx(min(len(texts[event.sample]), 20) / 20 + 0.25) for event in rewards)


def made_by_name(ran: Ran) -> None:
    """Each sample has a short turn and the function's metadata, which tells evaluations from training."""
    done, groups = ran.of(RolloutCompleted), {event.group: event for event in ran.of(PromptSubmitted)}
    assert not ran.of(RolloutFailed)
    assert max(event.length for event in done) == 6
    assert all(event.metadata["same"] and event.metadata["spans"] == ["turn"] for event in done)
    assert all(event.metadata["evaluated"] is (groups[event.group].purpose is Purpose.EVAL) for event in done)
    assert all(any(name.endswith(":generate") for name in event.functions) for event in done)


def made_by_panel(ran: Ran) -> None:
    """Two samples a rollout, graded by the function itself."""
    done = ran.of(RolloutCompleted)
    of_rollout: dict[str, list[bool]] = defaultdict(list)
    for event in done:
        of_rollout[event.rollout or event.sample].append(event.metadata["best"])
    assert {tuple(sorted(best)) for best in of_rollout.values()} == {(False, True)}
    assert {event.sample for event in ran.of(RewardAssigned)} == {event.sample for event in done}
    assert {step.samples for step in ran.of(StepCommitted)} == {32}


def made_by_a_client(ran: Ran) -> None:
    """Requests to the router's address are turns like any other."""
    done, turns = ran.of(RolloutCompleted), ran.of(TurnRecorded)
    assert not ran.of(RolloutFailed)
    assert {event.sample: event.length for event in turns} == {event.sample: event.length for event in done}


def filtered(ran: Ran) -> None:
    """Groups that the filter keeps are accepted; the others are rejected for its reason."""
    accepted, rejected = ran.of(GroupAccepted), ran.of(GroupRejected)
    assert [call["kept"] for call in ran.called("keep")].count(True) == len(accepted)
    assert [call["kept"] for call in ran.called("keep")].count(False) == len(rejected)
    assert all(len(set(event.rewards)) == 1 and event.reason == f"all_{event.rewards[0]:.1f}" for event in rejected)


def hooked(ran: Ran) -> None:
    """Two hooks ran, in order, on training and on evaluations."""
    done = ran.of(RolloutCompleted)
    assert all(event.metadata["length"] == event.length and len(event.functions) == 3 for event in done)
    assert {event.metadata["evaluated"] for event in done} == {False, True}
    cut = [event for event in done if event.stop == "length"]
    assert all(event.loss_mask is not None and not unpack(event.loss_mask).any() for event in cut)


def removed(ran: Ran) -> None:
    """One sample of each group."""
    for batch in ran.of(BatchSealed):
        assert len(batch.removed) == len(batch.groups)
        assert {name.rpartition("-s")[0] for name in batch.removed} == set(batch.groups)


def looked_at(ran: Ran) -> None:
    """It saw the groups that were kept, and those that were not."""
    assert all(any(name.endswith(":look_at_all") for name in batch.functions) for batch in ran.of(BatchSealed))
    seen = sum(call["groups"] for call in ran.called("look_at_all"))
    kept = sum(len(batch.groups) for batch in ran.of(BatchSealed))
    assert kept <= seen <= kept + len(ran.of(GroupRejected))


def logged(ran: Ran) -> None:
    """It took the place of the first step's metrics, and not of the second's."""
    assert [bool(batch.log_function) for batch in ran.of(BatchSealed)] == [True, False]
    assert [call["samples"] for call in ran.called("log_step")] == [16, 16]


def eval_logged(ran: Ran) -> None:
    """Each evaluation once."""
    evaluations = ran.of(EvalCompleted)
    assert [event.log_function.rpartition(":")[2] for event in evaluations] == ["log_eval"] * 2
    assert [call["rollout_id"] for call in ran.called("log_eval")] == [event.version for event in evaluations]


def post_processed(ran: Ran) -> None:
    """The rewards of a batch have the mean 0, those of a group have not."""
    for batch in ran.of(BatchSealed):
        mean = sum(batch.raw_rewards) / len(batch.raw_rewards)
        assert list(batch.rewards) == pytest.approx([raw - mean for raw in batch.raw_rewards])
        assert batch.post_process.endswith(":centred")


def converted(ran: Ran) -> None:
    """Rewards, loss masks and a column of its own are the batch's."""
    for batch in ran.of(BatchSealed):
        assert sum(batch.rewards) == pytest.approx(0, abs=1e-6)
        assert {event.name for event in batch.columns} == {"loss_masks", "weights"}
        assert batch.converted_by.endswith(":centred")


def halved(ran: Ran) -> None:
    """Half of the advantages that the other function set."""
    loss_is(-0.25)(ran)
    assert all("rollout_data_postprocess_path" in step.functions for step in ran.of(StepCommitted))


def pushed(ran: Ran) -> None:
    """Every version was shown to it before it was published."""
    published = ran.of(WeightsPublished)
    assert len(ran.called("push")) >= len(published) == 3
    assert all(call["weights"] == 1 for call in ran.called("push"))
    assert all("custom_update_weight_post_write_path" in event.functions for event in published)


def lost(ran: Ran) -> None:
    """The loss's own figure is a metric of the step."""
    for step in ran.of(StepCommitted):
        assert step.functions.keys() == {"custom_loss_function_path"}
        assert 0 < step.metrics["own_nll"] < 10
        assert 0 <= step.metrics["loss"] <= step.metrics["own_nll"]


def loss_is(expected: float) -> None:
    """Return an effect that checks the loss of the first step, whose ratio is 1."""

    def effect(ran: Ran) -> None:
        first, *_ = ran.of(StepCommitted)
        assert first.metrics["pg_loss"] == pytest.approx(expected, rel=1e-3)
        assert "custom_advantage_function_path" in first.functions

    return effect


def corrected(ran: Ran) -> None:
    """Twice the loss, and its own figure."""
    loss_is(-1.0)(ran)
    assert all(0 <= step.metrics["own_apart"] < 1e-3 for step in ran.of(StepCommitted)[:1])


def stood_still(ran: Ran) -> None:
    """The second step leaves the weights as they were; the first hook's note on `args` came to the others."""
    base, first, second = ran.of(WeightsPublished)
    assert base.digest != first.digest == second.digest
    assert [call["still"] for call in ran.called("stand_still")] == [False, True]
    assert all(step.functions.keys() >= {"custom_megatron_init_path"} for step in ran.of(StepCommitted))


def scored_before(ran: Ran) -> None:
    """Under the reference model, and under the policy where its log-probs are taken."""
    assert {call["prefix"] for call in ran.called("look")} == {"ref_", ""}
    assert all("custom_megatron_before_log_prob_hook_path" in step.functions for step in ran.of(StepCommitted))


def numbered(ran: Ran) -> None:
    """The prompts of the user's source."""
    prompts = [event for event in ran.of(PromptSubmitted) if event.purpose is Purpose.TRAIN]
    assert [event.metadata["number"] for event in prompts] == list(range(len(prompts)))
    assert all(event.source.path == "numbered.Numbered" for event in prompts)


def named(ran: Ran) -> None:
    """Every second prompt has a generate function of its own."""
    short = {event.group for event in ran.of(PromptSubmitted) if event.generate_function_path}
    done = [event for event in ran.of(RolloutCompleted) if not event.group.startswith("digits4")]
    assert short
    assert {event.group for event in done if event.functions} == {event.group for event in done} & short
    assert max(event.length for event in done if event.group in short) == 2


def drawn_again(ran: Ran) -> None:
    """Some prompts are of the other run."""
    drawn = [event for event in ran.of(PromptSubmitted) if "archive" in event.source.path]
    assert len(drawn) == len(ran.called("hardest"))


def chosen_by_itself(ran: Ran) -> None:
    """Its groups are the batches, what it left out is rejected, and the evaluation is what it said."""
    returned = [event for event in ran.of(RolloutReturned) if not event.evaluation]
    assert [event.groups for event in returned] == [tuple(batch.groups) for batch in ran.of(BatchSealed)]
    assert [event.metrics for event in returned] == [{"rollout/left_out": 1.0}] * 2
    assert [event.cause for event in ran.of(GroupRejected)] == [RejectionCause.NOT_RETURNED] * 2
    assert [(event.dataset, event.mean) for event in ran.of(EvalCompleted)] == [("apart", 0.5)] * len(
        ran.called("apart")
    )


def built(ran: Ran) -> None:
    """The policy and its reference, of the sizes that the checkpoint says."""
    assert [(call["layers"], call["hidden"]) for call in ran.called("provider")] == [(2, 128)] * 2
    assert all("custom_model_provider_path" in step.functions for step in ran.of(StepCommitted))


CASES = [
    Case("reward", "--custom-rm-path reward.score --reward-key score --custom-config-path own.yaml",
         ("score",), scored),
    Case("reward of a group", "--custom-rm-path reward:rank --group-rm", ("rank",), ranked),
    Case("reward of a class", "--custom-rm-path custom_rm.py --custom-config-path own.yaml",
         ("made", "compute_reward"), judged),
    Case("teacher", f"--use-opd --opd-type sglang --custom-rm-path teacher.ask {KEEP}", ("ask",), taught),
    Case("generate", f"--custom-generate-function-path turn_by_name.generate {KEEP}", ("generate",), made_by_name),
    Case("generate several", f"--custom-generate-function-path panel.py {KEEP}", ("panel",), made_by_panel),
    Case("own client", "--custom-generate-function-path own_client.generate", ("own_client",), made_by_a_client),
    Case("dynamic filter", KEEP, ("keep",), filtered),
    Case("sample hooks",
         "--rollout-sample-hook-path sample_hook.note_length --rollout-sample-hook-path sample_hook:mask_truncated",
         ("note_length",), hooked),
    Case("sample filter", "--rollout-sample-filter-path step_functions.drop_short", ("drop_short",), removed),
    Case("all samples", "--rollout-all-samples-process-path step_functions.py:look_at_all",
         ("look_at_all",), looked_at),
    Case("rollout log", "--custom-rollout-log-function-path step_functions.log_step", ("log_step",), logged),
    Case("eval log", "--custom-eval-rollout-log-function-path step_functions.log_eval", ("log_eval",), eval_logged),
    Case("reward post-process", "--custom-reward-post-process-path post_process.centred",
         ("centred",), post_processed),
    Case("convert to train data", "--custom-convert-samples-to-train-data-path convert.centred",
         ("convert",), converted),
    Case("data post-process", f"{LEVEL} --rollout-data-postprocess-path step_data.halved", ("halved",), halved),
    Case("weight post-write", "--custom-update-weight-post-write-path written.push", ("push",), pushed),
    Case("loss", "--loss-type custom_loss --custom-loss-function-path own_loss.likelihood", ("likelihood",), lost),
    Case("advantage", LEVEL, ("level",), loss_is(-0.5)),
    Case("correction", f"{LEVEL} --use-tis --custom-tis-function-path correction.doubled", ("doubled",), corrected),
    Case("loss reducer", f"{LEVEL} --custom-pg-loss-reducer-function-path loss_sum.by_constant",
         ("by_constant",), loss_is(-0.0625)),
    Case("init and train step",
         "--custom-megatron-init-path at_start.init "
         "--custom-megatron-before-train-step-hook-path before_train_step.stand_still",
         ("init", "stand_still"), stood_still),
    Case("before log-probs", f"{LEVEL} --custom-megatron-before-log-prob-hook-path before_log_prob.look",
         ("look",), scored_before),
    Case("rollout function",
         "--rollout-function-path rollout_function.worst --eval-function-path rollout_function.py:apart",
         ("worst", "apart"), chosen_by_itself),
    Case("model provider", "--custom-model-provider-path model_provider.py:provider", ("provider",), built),
    Case("data source", "--data-source-path numbered.Numbered", ("Numbered", "get_samples"), numbered),
    Case("data source that names", f"--data-source-path named_source.TwoKinds {KEEP}", (), named),
    Case("buffer filter", "--buffer-filter-path buffer_filter.hardest", ("hardest",), drawn_again, archive=True),
]  # fmt: skip
"""The first is short, and its archive is what others draw from."""
