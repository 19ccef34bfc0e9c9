"""Every kind of doctored log is found, with the sentence that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.audit.conftest import Run
from tests.audit.doctored import Doctored

Doctor = Callable[[Doctored], tuple[str, str]]
"""Works on a log; the check that must notice, and its sentence."""


def a_missing_position(log: Doctored) -> tuple[str, str]:
    gone = log.find("worker.joined") if any(r.type == "worker.joined" for r in log.records) else log.records[4]
    after = log.records[log.place(gone) + 1]
    log.delete(gone)
    about = f"{after.type} of {after.subject.rpartition('.')[2]}"
    return "positions", (
        f"position {after.position}, {about}: position {gone.position} is missing before it, "
        "so something was taken out of the log"
    )


def an_event_said_twice(log: Doctored) -> tuple[str, str]:
    reward = log.find("reward.assigned")
    again = log.insert(reward, after=reward)
    log.renumber()
    return "positions", (
        f"position {again.position}, reward.assigned of {again.event['sample']}: it was said at position "
        f"{reward.position} already, so one event is stored twice"
    )


def an_event_on_another_subject(log: Doctored) -> tuple[str, str]:
    reward = log.find("reward.assigned")
    said, reward.subject = reward.subject, "slime.sim.reward.assigned.nobody"
    return "positions", (
        f"position {reward.position}, reward.assigned of {reward.event['sample']}: it lies on "
        f"slime.sim.reward.assigned.nobody and says {said}, so it was moved there from elsewhere, and fences did not "
        "see it"
    )


def an_event_made_to_be_about_another(log: Doctored) -> tuple[str, str]:
    sealed = log.find("batch.sealed")
    sealed.event["step"], sealed.subject = 77, "slime.sim.batch.sealed.77"
    return "positions", (
        f"position {sealed.position}, batch.sealed of 77: its id is not that of what it says, so it was changed after "
        "it was written"
    )


def a_reward_before_its_rollout(log: Doctored) -> tuple[str, str]:
    reward = log.find("reward.assigned")
    log.move(reward, before=log.find("rollout.completed", where=lambda e: e["sample"] == reward.event["sample"]))
    log.renumber()
    return "rewards", (
        f"position {reward.position}, reward.assigned of {reward.event['sample']}: no completed rollout of the sample "
        "comes before it, so a reward was given for nothing"
    )


def another_reward(log: Doctored) -> tuple[str, str]:
    verdict = log.find("group.accepted")
    samples, rewards = verdict.event["samples"], verdict.event["rewards"]
    log.find("reward.assigned", where=lambda e: e["sample"] == samples[0]).event["value"] = 0.0
    taken = ", ".join(f"{reward:g}" for reward in rewards)
    assigned = ", ".join(f"{reward:g}" for reward in (0.0, *rewards[1:]))
    return "verdicts", (
        f"position {verdict.position}, group.accepted of {verdict.event['group']}: it was taken on rewards ({taken}), "
        f"and ({assigned}) were assigned, so the decision does not follow from the log"
    )


def other_figures(log: Doctored) -> tuple[str, str]:
    verdict = log.find("group.rejected")
    true = verdict.event["figures"]["max"]
    verdict.event["figures"]["max"] = 2.0
    return "verdicts", (
        f"position {verdict.position}, group.rejected of {verdict.event['group']}: its max is 2.0, and its rewards "
        f"give {true!r}, so the filter was shown other rewards"
    )


def verdicts_out_of_order(log: Doctored) -> tuple[str, str]:
    first, second = log.find("group.accepted"), log.find("group.accepted", nth=1)
    where = log.place(second)
    log.delete(first)
    log.records.insert(where, first)
    log.renumber()
    return "verdicts", (
        f"position {first.position}, group.accepted of {first.event['group']}: a group that was asked for after it was "
        "decided before it, so luck or length decided what was trained on"
    )


def a_verdict_without_a_reason(log: Doctored) -> tuple[str, str]:
    verdict = log.find("group.rejected")
    verdict.event["reason"] = ""
    return "rollouts", (
        f"position {verdict.position}, group.rejected of {verdict.event['group']}: it gives no reason, so work was "
        "dropped in silence"
    )


def a_chunk_taken_out(log: Doctored) -> tuple[str, str]:
    chunk = log.find("rollout.progressed", where=lambda e: e["start"] == 0)
    log.delete(chunk)
    log.renumber()
    after = log.find("rollout.progressed", where=lambda e: e["sample"] == chunk.event["sample"])
    return "tokens", (
        f"position {after.position}, rollout.progressed of {after.event['sample']}: it starts at token 8, and the log "
        "holds 0 before it, so 8 tokens are missing"
    )


def a_chunk_twice(log: Doctored) -> tuple[str, str]:
    chunk = log.find("rollout.progressed", where=lambda e: e["start"] == 8)
    again = log.insert(chunk, after=chunk)
    log.renumber()
    return "tokens", (
        f"position {again.position}, rollout.progressed of {again.event['sample']}: it starts at token 8, and the log "
        "holds 16 before it, so 8 tokens are there twice"
    )


def another_token(log: Doctored) -> tuple[str, str]:
    chunk = log.find("rollout.progressed", where=lambda e: e["start"] == 0)
    data = bytearray(chunk.event["tokens"]["data"])
    data[0] ^= 1
    chunk.event["tokens"]["data"] = bytes(data)
    done = log.find("rollout.completed", where=lambda e: e["sample"] == chunk.event["sample"])
    return "tokens", (
        f"position {done.position}, rollout.completed of {done.event['sample']}: its digest is not that of the tokens "
        "and log-probs in the log, so one of them was changed"
    )


def another_weight_version(log: Doctored) -> tuple[str, str]:
    done = log.find("rollout.completed", nth=-1)
    done.event["spans"] = [[0, 24, 99]]
    return "tokens", (
        f"position {done.position}, rollout.completed of {done.event['sample']}: its weight versions over the first 16 "
        "tokens are not those of its chunks, so staleness and masks of the sample are wrong"
    )


def a_prompt_skipped(log: Doctored) -> tuple[str, str]:
    gone = log.find("prompt.submitted", where=lambda e: "purpose" not in e, nth=1)
    after = log.find("prompt.submitted", where=lambda e: "purpose" not in e, nth=2)
    log.delete(*[r for r in log.records if r.subject.rpartition(".")[2].startswith(gone.event["group"])])
    log.renumber()
    path, offset = gone.event["source"]["path"], gone.event["source"]["offset"]
    return "prompts", (
        f"position {after.position}, prompt.submitted of {after.event['group']}: prompt {offset} of {path} did not "
        "come before it, so the cursor skipped what it holds"
    )


def a_prompt_repeated(log: Doctored) -> tuple[str, str]:
    prompt = log.find("prompt.submitted", where=lambda e: "purpose" not in e, nth=1)
    again = log.insert(prompt, after=prompt)
    again.event["group"], again.subject = "train-9-000000", "slime.sim.prompt.submitted.train-9-000000"
    log.renumber()
    path, offset = prompt.event["source"]["path"], prompt.event["source"]["offset"]
    return "prompts", (
        f"position {again.position}, prompt.submitted of train-9-000000: prompt {offset} of {path} was drawn before, "
        f"the cursor was at {offset + 1}, so a prompt was repeated or drawn out of order"
    )


def a_request_nobody_can_know(log: Doctored) -> tuple[str, str]:
    prompt = log.find("prompt.submitted", where=lambda e: "purpose" not in e)
    request = log.find("rollout.requested", where=lambda e: e["group"] == prompt.event["group"])
    log.move(request, before=prompt)
    log.renumber()
    return "rollouts", (
        f"position {request.position}, rollout.requested of {request.event['sample']}: no prompt of group "
        f"{request.event['group']} was submitted, so nobody knows what was asked"
    )


def a_rollout_asked_for_twice(log: Doctored) -> tuple[str, str]:
    request = log.find("rollout.requested")
    again = log.insert(request, after=request)
    again.event["attempt"] = 1
    log.renumber()
    return "rollouts", (
        f"position {again.position}, rollout.requested of {again.event['sample']}: attempt 0 is waiting, neither "
        "failed nor suspended, so two engines may make the same rollout"
    )


def a_chunk_after_the_end_of_its_rollout(log: Doctored) -> tuple[str, str]:
    done = log.find("rollout.completed")
    late = log.find("rollout.progressed", where=lambda e: e["sample"] == done.event["sample"] and e["start"] == 8)
    log.delete(late)
    log.records.insert(log.place(done) + 1, late)
    log.renumber()
    return "rollouts", (
        f"position {late.position}, rollout.progressed of {late.event['sample']}: the rollout had ended at position "
        f"{done.position}, so an engine that had lost the sample still wrote"
    )


def another_batch(log: Doctored) -> tuple[str, str]:
    sealed = log.find("batch.sealed")
    sealed.event["samples"] = sealed.event["samples"][::-1]
    return "batches", (
        f"position {sealed.position}, batch.sealed of 0: its samples are not those of its groups in order, so samples "
        "were left out or added"
    )


def another_batch_digest(log: Doctored) -> tuple[str, str]:
    sealed = log.find("batch.sealed", nth=1)
    sealed.event["digest"] = "0" * 64
    return "batches", (
        f"position {sealed.position}, batch.sealed of 1: its digest is not that of its samples' contents and rewards, "
        "so what was sealed is not what the log holds"
    )


def other_advantages(log: Doctored) -> tuple[str, str]:
    sealed = log.find("batch.sealed")
    sealed.event["rewards"] = [reward * 2 for reward in sealed.event["rewards"]]
    return "batches", (
        f"position {sealed.position}, batch.sealed of 0: its rewards are not its raw rewards normalised over their "
        "groups, so it trains on other advantages than the log gives"
    )


def a_group_trained_twice(log: Doctored) -> tuple[str, str]:
    first, second = log.find("batch.sealed"), log.find("batch.sealed", nth=1)
    for name in ("groups", "samples", "rewards", "raw_rewards"):
        second.event[name] = first.event[name]
    commit = log.find("step.committed", nth=1)
    earlier = log.find("step.committed")
    return "training", (
        f"position {commit.position}, step.committed of 1: sample {first.event['samples'][0]} was trained at position "
        f"{earlier.position}, so it counts twice in the weights"
    )


def an_undecided_group_trained(log: Doctored) -> tuple[str, str]:
    sealed = log.find("batch.sealed")
    group = sealed.event["groups"][0]
    log.delete(log.find("group.accepted", where=lambda e: e["group"] == group))
    log.renumber()
    return "batches", (
        f"position {sealed.position}, batch.sealed of 0: group {group} was not accepted before it, so it trains on "
        "what was not decided"
    )


def a_step_on_another_version(log: Doctored) -> tuple[str, str]:
    commit = log.find("step.committed", nth=2)
    commit.event["parent_version"] = 1
    return "steps", (
        f"position {commit.position}, step.committed of 2: it makes v3 from v1, not v3 from v2, so the chain of weight "
        "versions is broken"
    )


def a_step_of_a_trainer_that_was_replaced(log: Doctored) -> tuple[str, str]:
    claimed, commit = log.find("step.claimed"), log.find("step.committed", nth=2)
    commit.body["producer"] = "trainer-late"
    return "steps", (
        f"position {commit.position}, step.committed of 2: trainer-late said it after {claimed.event['trainer']} had "
        "claimed step 0, so a trainer that was replaced still commits"
    )


def a_step_taken_out(log: Doctored) -> tuple[str, str]:
    log.delete(log.find("step.committed", nth=1))
    log.renumber()
    after = log.find("step.committed", nth=1)
    return "steps", f"position {after.position}, step.committed of 2: step 2 comes after 1 steps, so a step is missing"


def other_weights_published(log: Doctored) -> tuple[str, str]:
    published = log.find("weights.published", nth=2)
    published.event["digest"] = "0" * 64
    return "weights", (
        f"position {published.position}, weights.published of 2: its digest is not the one that step 1 committed, so "
        "engines run weights that no step made"
    )


def other_weights_activated(log: Doctored) -> tuple[str, str]:
    activated = log.find("weights.activated")
    activated.event["digest"] = "0" * 64
    about = activated.subject.rpartition(".")[2]
    return "weights", (
        f"position {activated.position}, weights.activated of {about}: its digest is not the published one, so the "
        "engine runs other weights than the trainer made"
    )


def another_checkpoint(log: Doctored) -> tuple[str, str]:
    saved = log.find("checkpoint.saved")
    saved.event["optimizer_digest"] = "0" * 64
    return "weights", (
        f"position {saved.position}, checkpoint.saved of 2: its digests are not those that step 1 committed, so "
        "whoever resumes from it trains something else"
    )


def another_mean(log: Doctored) -> tuple[str, str]:
    done = log.find("eval.completed")
    true, done.event["mean"] = done.event["mean"], 1.0
    return "evaluations", (
        f"position {done.position}, eval.completed of held-v0: its mean is 1.0, and the log gives {true!r}, so the "
        "evaluation's curve is wrong"
    )


def half_an_evaluation(log: Doctored) -> tuple[str, str]:
    prompt = log.find("prompt.submitted", where=lambda e: e["group"] == "eval-held-v2-000001")
    log.delete(*[r for r in log.records if r.subject.rpartition(".")[2].startswith(prompt.event["group"])])
    log.renumber()
    done = log.find("eval.completed", nth=1)
    return "prompts", (
        f"position {done.position}, eval.completed of held-v2: its set differs from that of version 0 in prompt 1, so "
        "the two means are not of the same questions"
    )


def a_decision_after_the_end(log: Doctored) -> tuple[str, str]:
    end = log.find("run.finished")
    late = log.insert(log.find("rollout.requested"), after=end)
    log.renumber()
    return "lifetime", (
        f"position {late.position}, rollout.requested of {late.event['sample']}: the run had ended at position "
        f"{end.position} and was not resumed, so a process that should have ended still decides"
    )


def a_resumption_missing(log: Doctored) -> tuple[str, str]:
    started = log.find("run.started")
    resumed = log.insert(started, after=log.records[-1])
    resumed.subject = "slime.sim.run.resumed.run"
    resumed.body["event"] = {"type": "run.resumed", "incarnation": 2, "code_version": ""}
    log.renumber()
    return "lifetime", (
        f"position {resumed.position}, run.resumed of run: it is incarnation 2 after 0, so a resumption is missing, or "
        "two went on at once"
    )


def a_log_without_its_beginning(log: Doctored) -> tuple[str, str]:
    log.delete(log.find("run.started"))
    log.renumber()
    first = log.records[0]
    about = f"{first.type} of {first.subject.rpartition('.')[2]}"
    return "lifetime", (
        f"position 1, {about}: the log does not begin with run.started, so this is not one run's whole log"
    )


def a_byte_that_nobody_reads(log: Doctored) -> tuple[str, str]:
    log.find("reward.assigned").body["at"] += 1
    end = log.find("run.finished")
    return "fold", (
        f"position {end.position}, run.finished of run: the {end.position - 1} events before it fold to another state, "
        "so an event was changed, added or replaced since"
    )


def segments_with_a_gap(log: Doctored) -> tuple[str, str]:
    end = log.records[-1]
    for number, (first, last) in enumerate([(1, 10), (12, 20)]):
        record = log.insert(end, after=log.records[-1])
        record.subject = f"slime.sim.archive.sealed.{number}"
        record.body["event"] = {
            "type": "archive.sealed", "segment": number, "first": first, "last": last, "sha256": "", "bytes": 1,
            "url": "",
        }  # fmt: skip
    log.renumber()
    return "archive", (
        f"position {log.records[-1].position}, archive.sealed of 1: it begins at position 12, and the segment before "
        "it ends at 10, so the archive alone cannot restore the log"
    )


DOCTORS: tuple[Doctor, ...] = (
    a_missing_position,
    an_event_said_twice,
    an_event_on_another_subject,
    an_event_made_to_be_about_another,
    a_reward_before_its_rollout,
    another_reward,
    other_figures,
    verdicts_out_of_order,
    a_verdict_without_a_reason,
    a_chunk_taken_out,
    a_chunk_twice,
    another_token,
    another_weight_version,
    a_prompt_skipped,
    a_prompt_repeated,
    a_request_nobody_can_know,
    a_rollout_asked_for_twice,
    a_chunk_after_the_end_of_its_rollout,
    another_batch,
    another_batch_digest,
    other_advantages,
    a_group_trained_twice,
    an_undecided_group_trained,
    a_step_on_another_version,
    a_step_of_a_trainer_that_was_replaced,
    a_step_taken_out,
    other_weights_published,
    other_weights_activated,
    another_checkpoint,
    another_mean,
    half_an_evaluation,
    a_decision_after_the_end,
    a_resumption_missing,
    a_log_without_its_beginning,
    a_byte_that_nobody_reads,
    segments_with_a_gap,
)


@pytest.mark.parametrize("doctor", DOCTORS, ids=lambda doctor: doctor.__name__)
async def test_it_is_found_and_said(synchronous: Run, doctor: Doctor) -> None:
    log = synchronous.doctored()
    check, sentence = doctor(log)
    report = await log.audit(synchronous.auditor(files=False))
    assert not report.clean
    (said,) = [one for one in report.checks if one.name == check]
    assert sentence in [str(finding) for finding in said.findings]


@pytest.mark.parametrize("kind", ["delete", "repeat", "swap", "change"])
async def test_no_event_can_be_touched(synchronous: Run, kind: str) -> None:
    """Whichever event it is, and however well the forger renumbers."""
    for place in range(0, len(synchronous.records) - 2, 9):
        log = synchronous.doctored()
        record = log.records[place]
        if kind == "delete":
            log.delete(record)
        elif kind == "repeat":
            log.insert(record, after=record)
        elif kind == "swap":
            log.move(log.records[place + 1], before=record)
        else:
            record.body["producer"] += "x"
        log.renumber()
        report = await log.audit(synchronous.auditor(files=False))
        assert not report.clean, f"{kind} of {record.type} at position {place + 1}"
