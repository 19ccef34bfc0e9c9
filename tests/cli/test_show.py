"""`show`: one pass over a finished run, and every view of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.arrays import unpack
from schemas.errors import RunNotFound
from schemas.ids import INBOX, inbox_group_id
from schemas.inbox import InboxPrompt
from schemas.prompts import PromptOffered, PromptRejected, Source
from schemas.weights import WeightsStored
from slime_events.analysis.views.read_run import look_run_up, read_whole_run, view_run_now
from slime_events.app.cli.commands.show import Question, View, trace_text, view_of
from slime_events.core.config.data import DataSettings
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.state.keeper import StateKeeper
from slime_events.core.state.snapshot import Snapshots
from slime_events.loop.conductor.outside_prompts import OutsidePrompts
from slime_events.model import Run
from slime_events.model.progress import Progress, ProgressSnapshot
from storage.memory_log import MemoryLog
from tests import made
from tests.cli import small_run as run
from tests.cli.small_run import REJECTED, small_run
from tests.simulation.parts import Letters


async def _answer(**question: object) -> View:
    shown = await view_of(await small_run(), Question(**question), unpack)  # type: ignore[arg-type]
    json.dumps(shown.facts)  # every view has a JSON form
    return shown


async def test_the_run() -> None:
    shown = await _answer()
    facts = shown.facts
    assert (facts["phase"], len(facts["steps"]), facts["version"]) == ("finished", 2, 2)
    assert facts["counts"]["groups_accepted"] == 4
    (rejection,) = facts["rejections"]
    assert rejection == {"cause": "filter", "reason": "zero_std_0.0", "groups": 1, "examples": [REJECTED]}
    assert "train.jsonl:7" in shown.text
    assert "2 of 2, weight version 2" in shown.text


async def test_a_step() -> None:
    shown = await _answer(step=1)
    assert shown.facts["version"] == 2
    assert [s["sample"] for s in shown.facts["samples"]][1] == "inbox-aa-s1"
    assert shown.facts["samples"][1]["versions"] == "v0[0:2] v1[2:3]"
    assert shown.facts["samples"][1]["normalised"] == 1.0
    assert "v1 -> v2" in shown.text


async def test_an_accepted_group_names_the_version_it_went_into() -> None:
    shown = await _answer(group="inbox-aa")
    assert (shown.facts["step"], shown.facts["version"]) == (1, 2)
    assert "step 1 -> weight version 2" in shown.text
    assert "inbox, key k1" in shown.text
    assert "user: What is inbox-aa?" in shown.text


async def test_a_rejected_group_says_why() -> None:
    shown = await _answer(group=REJECTED)
    assert "rejected (filter) by nonzero_std: zero_std_0.0, mean 0 std 0" in shown.text
    assert "in no batch" in shown.text


async def test_a_sample_token_by_token() -> None:
    shown = await _answer(sample="inbox-aa-s1")
    tokens = shown.facts["tokens"]
    assert [(t["token"], t["log_prob"], t["version"]) for t in tokens] == [
        (10, -0.5, 0),
        (11, -0.25, 0),
        (12, -0.125, 1),
    ]
    assert shown.facts["reward"]["value"] == 1.0
    assert shown.facts["engine"] == "engine-1"
    assert "accepted" in shown.text
    assert "step 1 -> weight version 2" in shown.text


async def test_a_sample_without_its_request_is_shown_without_tokens() -> None:
    log = await made.log(made.started(), made.completed("g-s0", [5, 6], text="six"), run="part")
    shown = await view_of(log, Question(sample="g-s0"), unpack)
    assert (shown.facts["text"], shown.facts["length"], shown.facts["tokens"]) == ("six", 2, [])
    assert "six" in shown.text


async def test_a_long_token_table_is_cut_in_the_middle() -> None:
    shown = await _answer(sample="inbox-aa-s1", tokens=2)
    assert "1 tokens in the middle are not shown" in shown.text
    assert "left out" not in (await _answer(sample="inbox-aa-s1", tokens=0)).text


async def test_a_version() -> None:
    shown = await _answer(version=2)
    assert (shown.facts["step"], shown.facts["published"]["parent"]) == (1, 1)
    assert [a["engine"] for a in shown.facts["activations"]] == ["engine-1"]
    assert shown.facts["evals"][0]["mean"] == 0.75
    assert "the run begins with it" in (await _answer(version=0)).text


async def test_a_version_that_is_stored_after_its_step() -> None:
    log = MemoryLog("r")
    worker = Participant(log, "trainer")
    before = [made.started(), made.published(0), made.sealed(0), made.committed(0, stored=False), made.published(1, 0)]
    for event in before:
        await worker.append([event])
    question = Question(version=1)
    waiting = await view_of(log, question, unpack)
    assert (waiting.facts["is_stored"], waiting.facts["stored"]) == (False, None)
    await worker.append([WeightsStored(version=1, digest="d1", url="there", bytes=1)])
    stored = await view_of(log, question, unpack)
    assert (stored.facts["is_stored"], stored.facts["stored"]["url"]) == (True, "there")
    assert "not yet" in waiting.text
    assert "after its step" in stored.text


async def test_a_beginning_that_only_one_id_has_is_enough() -> None:
    assert (await _answer(group="inbox")).facts["group"] == "inbox-aa"
    with pytest.raises(RunNotFound, match="4 ids begin with 'train'"):
        await _answer(group="train")


async def test_a_group_is_found_by_its_producer_s_key() -> None:
    assert (await _answer(group="k1")).facts["group"] == "inbox-aa"


async def test_a_key_of_two_sources_names_both_and_one_that_is_no_group_yet_its_fate() -> None:
    log = MemoryLog("keys")
    worker = Participant(log, "launcher")
    await worker.append([made.started()])
    outside = OutsidePrompts(DataSettings(), Letters(), 200)
    for sender in ("", "quiz"):
        await worker.append([outside.submitted(InboxPrompt(key="a key", prompt="1"), sender)])
    groups = [inbox_group_id("a key", sender) for sender in ("", "quiz")]
    with pytest.raises(RunNotFound, match=f"{groups[0]} of nats, {groups[1]} of quiz"):
        await view_of(log, Question(group="a key"), unpack)
    waits = [inbox_group_id(key, "quiz") for key in ("w", "r")]
    await worker.append(
        [PromptOffered(group=waits[0], key="w", prompt="1"), PromptOffered(group=waits[1], key="r", prompt="1")]
    )
    await worker.append(
        [PromptRejected(source=Source(path=INBOX, key="r"), reason="too_long", dataset=INBOX, group=waits[1])]
    )
    for name, fate in (("w", "waits"), (waits[0], "waits"), ("r", "was refused: too_long")):
        with pytest.raises(RunNotFound, match=fate):
            await view_of(log, Question(group=name), unpack)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"group": "imbox-aa"}, "Nearest: inbox-aa"),
        ({"sample": "inbox-aa-s9"}, r"Nearest: inbox-aa-s"),
        ({"step": 7}, "no step 7: there are 0 to 1"),
        ({"version": 7}, "no weight version 7: there are 0 to 2"),
    ],
)
async def test_what_is_not_there_gets_the_nearest(question: dict[str, object], message: str) -> None:
    with pytest.raises(RunNotFound, match=message):
        await _answer(**question)


async def test_a_trace_leads_from_submit_to_activate() -> None:
    text = await trace_text(await small_run(), "inbox")
    names = [line.lstrip("│├└─⇢ ").split()[0] for line in text.splitlines()]
    generated = ["generate", "grade"]
    assert names == ["submit", *generated, *generated, "decide", "batch", "train", "publish", "activate"]


def test_the_steps_and_the_bound_are_those_of_the_newest_resumption() -> None:
    changed = {"rollout": {"num_rollout": 9, "max_staleness": 2, "over_sampling_batch_size": 32}}
    events_ = [*run.events(), made.resumed(settings=changed)]
    records, progress = Run(run.RUN), Progress(run.RUN)
    for recorded in run.recorded(events_):
        records.apply(recorded)
        progress.apply(recorded)
    view = view_run_now(records, progress, progress.figures.steps, launched=True)
    assert (view.steps_wanted, view.phase, view.lives) == (9, "running", 2)
    assert (view.staleness.most, view.staleness.bound) == (1, 4)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
async def test_a_run_is_shown_the_same_from_its_launcher_s_snapshot_on(tmp_path: Path, share: float) -> None:
    log = await small_run()
    seen, folder = Progress(log.run), RunFolder(tmp_path, log.run)
    folder.path.mkdir()
    folder.settings.write_text("")
    for recorded in log.records[: int(share * len(log.records))]:
        seen.apply(recorded)
    if seen.state.events:
        await StateKeeper(Snapshots(folder.path / "snapshots" / "launcher", ProgressSnapshot)).close(seen)
    whole, quick = await read_whole_run(log), await look_run_up(log, folder)
    assert view_run_now(*quick) == view_run_now(*whole)
    assert not quick[0].samples
