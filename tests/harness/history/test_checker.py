"""A simulated run is clean, and each kind of finding is found in a log that was doctored so."""

from __future__ import annotations

import ast
import asyncio
import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.steps import StepCommitted
from slime_events.core.config.installed import parsed
from slime_events.core.state.run import RunPhase
from storage.memory_log import MemoryLog
from tests.generate.scene import a_run
from tests.golden.log_file import FOLDER, read_records
from tests.harness.history.__main__ import main
from tests.harness.history.checker import check
from tests.harness.history.doctor import Doctored
from tests.harness.history.finding import Kind
from tests.harness.history.life import staleness_bound
from tests.harness.history.record import Raw, read_record
from tests.scripted_engine import Script
from tests.simulation.crash import Crash, Fate, Half
from tests.simulation.simulation import Simulation, make_plan

BOUND = 1


async def simulated(folder: Path) -> list[Raw]:
    """Three steps of two groups, two engines, a checkpoint, evaluations, a bad prompt line, a response that failed."""
    plan = make_plan(
        steps=3, max_staleness=BOUND, checkpoint_every=2, eval_every=2, eval_names=("held",), eval_samples=2
    )
    prompts = ["a", {"input": 7}, *[f"p{n}" for n in range(20)]]
    async with Simulation(folder, plan, prompts=prompts, evaluations={"held": ["one", "two"]}) as sim:
        for _ in range(2):
            sim.start_engine(Script(chunk=8, refused={"train-0-000000-s0-0-1": "no room"}))
        assert await sim.finish() is RunPhase.FINISHED
    return raw_records(sim.log)


def raw_records(log: MemoryLog) -> list[Raw]:
    """A log as the checker takes it."""
    return [(recorded.position, recorded.subject, recorded.data) for recorded in log.records]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> list[Raw]:
    """The records of a run without faults."""
    return asyncio.run(simulated(tmp_path_factory.mktemp("run")))


def test_a_simulated_run_is_clean(clean: list[Raw]) -> None:
    assert check(clean, bound=BOUND) == []
    types = {read_record(raw).type for raw in clean}
    assert types >= {"rollout.failed", "rollout.progressed", "prompt.rejected", "checkpoint.saved", "eval.completed"}


def test_what_was_written_long_ago_can_be_read() -> None:
    """The golden log is a list of examples, with placeholders for digests: no run that could have been."""
    raw = [
        (position, "slime.golden." + read_record((0, "", data)).type + ".x", data)
        for position, data in enumerate(read_records(FOLDER / "v1.slimelog"), 1)
    ]
    findings = check(raw, bound=1)
    assert {finding.kind for finding in findings} == {
        Kind.PROMPT_SKIPPED, Kind.PROMPT_REPEATED, Kind.NOT_REQUESTED, Kind.WRONG_DIGEST, Kind.REWARD_EARLY,
        Kind.WRONG_EVALUATION,
    }, "\n".join(map(str, findings))  # fmt: skip


Doctoring = Callable[[Doctored], None]


def _trained(log: Doctored) -> str:
    """A sample that the first batch trains."""
    return str(log.event("batch.sealed")["samples"][0])


def _chunk_of(log: Doctored, which: int) -> int:
    sample = _trained(log)
    return log.places("rollout.progressed", lambda event: event["sample"] == sample)[which]


def _change(kind: str, which: int = 0, **fields: object) -> Doctoring:
    return lambda log: log.event(kind, which).update(fields)


def _drop(kind: str, which: int = 0) -> Doctoring:
    return lambda log: log.drop(log.places(kind)[which])


def _earlier(kind: str, before: str, which: int = 0) -> Doctoring:
    return lambda log: log.move(log.places(kind)[which], log.places(before)[0])


def _repeat(kind: str, which: int = 0, **fields: object) -> Doctoring:
    return lambda log: log.repeat(log.places(kind)[which], log.places("run.finished")[0], **fields)


def _other_tokens(log: Doctored) -> None:
    tokens = log.wires[_chunk_of(log, 0)]["event"]["tokens"]
    tokens["data"] = bytes([tokens["data"][0] ^ 1]) + tokens["data"][1:]


def _other_span(log: Doctored) -> None:
    log.event("rollout.completed")["spans"] = [[0, 24, 7]]


def _old_weights(log: Doctored) -> None:
    """All of one late sample as of version -2, said by its chunks and its end alike."""
    sample = log.event("batch.sealed", -1)["samples"][0]
    for wire in log.wires:
        if wire["event"].get("sample") == sample and "spans" in wire["event"]:
            wire["event"]["spans"] = [[start, end, -2] for start, end, _ in wire["event"]["spans"]]


def _other_version_asked(log: Doctored) -> None:
    """Request a weight version that did not generate the sample."""
    log.event("rollout.requested")["max_version"] = 77


def _swap_groups(log: Doctored) -> None:
    event = log.event("batch.sealed")
    event["groups"] = event["groups"][::-1]


def _same_id(log: Doctored) -> None:
    place = log.places("worker.joined" if log.places("worker.joined") else "weights.activated")[0]
    log.repeat(place, len(log.wires))
    log.wires[-1]["id"] = log.wires[place]["id"]


def _draw_again(log: Doctored) -> None:
    last = log.places("prompt.submitted", lambda event: event.get("purpose", "train") == "train")[-1]
    log.wires[last]["event"]["source"]["offset"] = 0


def _inbox(log: Doctored) -> None:
    place = log.places("prompt.submitted")[0]
    for group in ("inbox-1", "inbox-2"):
        log.repeat(place, log.places("run.finished")[0], group=group, source={"path": "inbox", "key": "k"})
        log.wires[log.places("run.finished")[0] - 1]["id"] = group


DOCTORED: dict[str, tuple[Kind, Doctoring]] = {
    "bytes that are no event": (Kind.UNREADABLE, lambda log: log.wires[5].pop("event") and None),
    "an event twice": (Kind.REPEATED, _same_id),
    "a request while the sample is under way": (Kind.REPEATED, lambda log: log.repeat(
        log.places("rollout.requested")[1], _chunk_of(log, 0), attempt=5)),
    "another subject": (Kind.WRONG_SUBJECT, lambda log: log.readdress(3, "slime.sim.run.started.run")),
    "an effect without its cause": (Kind.NO_CAUSE, lambda log: log.wires[-2].update(cause="0" * 32)),
    "no start": (Kind.NOT_STARTED, _drop("run.started")),
    "a decision after the end": (Kind.AFTER_THE_END, lambda log: log.repeat(
        log.places("group.accepted")[0], group="other")),
    "a resumption left out": (Kind.WRONG_INCARNATION, lambda log: log.repeat(0, type="run.resumed", incarnation=2)),
    "a step not counted": (Kind.WRONG_COUNT, _change("run.finished", steps=2)),
    "tokens not counted": (Kind.WRONG_COUNT, _change("step.committed", tokens=7)),
    "a prompt left out": (Kind.PROMPT_SKIPPED, _drop("prompt.rejected")),
    "a prompt again": (Kind.PROMPT_REPEATED, _draw_again),
    "a key again": (Kind.PROMPT_REPEATED, _inbox),
    "nobody asked": (Kind.NOT_REQUESTED, _drop("rollout.requested")),
    "an attempt that nobody asked for": (Kind.NOT_REQUESTED, _change("rollout.completed", attempt=3)),
    "a chunk left out": (Kind.TORN, lambda log: log.drop(_chunk_of(log, 1))),
    "a chunk twice": (Kind.TORN, lambda log: log.repeat(_chunk_of(log, 0), _chunk_of(log, 0) + 1)),
    "chunks in another order": (Kind.TORN, lambda log: log.move(_chunk_of(log, 1), _chunk_of(log, 0))),
    "a chunk after completion": (Kind.AFTER_COMPLETION, lambda log: log.repeat(
        _chunk_of(log, 0), log.places("run.finished")[0])),
    "an evaluation by other weights": (Kind.WRONG_VERSION, _other_version_asked),
    "other weights than the chunks say": (Kind.WRONG_SPANS, _other_span),
    "another token": (Kind.WRONG_DIGEST, _other_tokens),
    "a batch of other rewards": (Kind.WRONG_DIGEST, lambda log: log.event("batch.sealed")["rewards"].reverse()),
    "a reward before the end": (Kind.REWARD_EARLY, _earlier("reward.assigned", "rollout.completed")),
    "a second reward": (Kind.REWARD_TWICE, _repeat("reward.assigned")),
    "a verdict before the rewards": (Kind.VERDICT_EARLY, _earlier("group.accepted", "reward.assigned")),
    "a verdict on nothing": (Kind.VERDICT_EARLY, _repeat("group.accepted", group="other")),
    "a second verdict": (Kind.VERDICT_TWICE, _repeat("group.accepted", type="group.rejected", cause="filter")),
    "a verdict on other rewards": (Kind.WRONG_VERDICT, _change("group.accepted", rewards=[0.5, 0.5, 0.5])),
    "an evaluation's mean": (Kind.WRONG_EVALUATION, _change("eval.completed", mean=0.999)),
    "an evaluation too early": (Kind.WRONG_EVALUATION, _earlier("eval.completed", "rollout.completed")),
    "a batch of what was rejected": (Kind.NOT_ACCEPTED, _change(
        "group.accepted", type="group.rejected", cause="stale")),
    "a batch twice": (Kind.TRAINED_TWICE, _repeat("batch.sealed", step=3)),
    "a step left out at the end": (Kind.NOT_TRAINED, _drop("step.committed", -1)),
    "samples in another order": (Kind.WRONG_BATCH, _swap_groups),
    "a batch left out": (Kind.WRONG_BATCH, _drop("batch.sealed")),
    "an oldest version": (Kind.WRONG_BATCH, _change("batch.sealed", -1, oldest_version=-7)),
    "a step before its batch": (Kind.NOT_SEALED, _earlier("step.committed", "batch.sealed")),
    "a step of another batch": (Kind.NOT_SEALED, _change("step.committed", batch_digest="00")),
    "a step left out": (Kind.BROKEN_CHAIN, _drop("step.committed", 1)),
    "a step twice": (Kind.BROKEN_CHAIN, _repeat("step.committed")),
    "a version without its step": (Kind.BROKEN_CHAIN, _earlier("weights.published", "step.committed", 1)),
    "another version than was committed": (Kind.WRONG_WEIGHTS, _change("weights.published", 1, digest="00")),
    "an engine with other weights": (Kind.WRONG_WEIGHTS, _change("weights.activated", digest="00")),
    "a checkpoint of other weights": (Kind.WRONG_WEIGHTS, _change("checkpoint.saved", weights_digest="00")),
    "a checkpoint of another optimizer": (Kind.WRONG_WEIGHTS, _change("checkpoint.saved", optimizer_digest="00")),
    "a version that was never stored": (Kind.WRONG_WEIGHTS, _change("step.committed", stored=False)),
    "a version that was stored before": (Kind.WRONG_WEIGHTS, lambda log: log.repeat(
        log.places("weights.published")[1], type="weights.stored")),
    "tokens beyond the bound": (Kind.STALE, _old_weights),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCTORED)
def test_a_doctored_log_is_found(clean: list[Raw], name: str) -> None:
    kind, doctor = DOCTORED[name]
    log = Doctored(clean)
    doctor(log)
    findings = check(log.records(), bound=BOUND)
    assert kind in {finding.kind for finding in findings}, "\n".join(map(str, findings)) or "nothing was found"


def test_a_hole(clean: list[Raw]) -> None:
    assert check([*clean[:3], *clean[4:]], bound=BOUND)[0].kind is Kind.HOLE


def test_foreign_records_are_no_holes_and_count_as_nothing(clean: list[Raw]) -> None:
    moved = [(position + 2 * (position > 3), subject, data) for position, subject, data in clean]
    assert check(moved, foreign={4, 5}, bound=BOUND) == check(clean, bound=BOUND) == []
    assert check(moved, foreign={4}, bound=BOUND)[0].kind is Kind.HOLE


def test_it_shares_no_code_with_what_it_checks() -> None:
    """A mistake in the product's code cannot hide itself from this checker: it imports none of that code."""
    own = [path for path in Path(__file__).parent.glob("[a-z]*.py") if not path.name.startswith("test_")]
    assert len(own) > 10
    nodes = [(path.stem, node) for path in own for node in ast.walk(parsed(path))]
    imported = {(stem, node.module or "") for stem, node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {(stem, alias.name) for stem, node in nodes if isinstance(node, ast.Import) for alias in node.names}
    allowed = {*sys.stdlib_module_names, "msgspec"}
    others = {
        (stem, module)
        for stem, module in imported
        if module.split(".")[0] not in allowed and not module.startswith("tests.harness.history")
    }
    assert not others


def test_every_kind_has_its_doctored_log() -> None:
    assert {kind for kind, _ in DOCTORED.values()} | {Kind.HOLE} == set(Kind)


async def test_after_a_resumption_decisions_are_right_again(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=1000)) as sim:
        sim.start_engine(Script(chunk=8))
        await sim.until(StepCommitted, 1)
        sim.conductor.stop()
        await sim.finish()
    assert check(raw_records(sim.log), bound=0) == []
    log = Doctored(raw_records(sim.log))
    late = log.places("prompt.submitted")[-1]
    log.move(late, len(log.wires) - 1)
    assert Kind.AFTER_THE_END in {finding.kind for finding in check(log.records(), bound=0)}
    log.repeat(0, log.places("run.finished")[0] + 1, type="run.resumed", incarnation=1)
    assert Kind.AFTER_THE_END not in {finding.kind for finding in check(log.records(), bound=0)}


async def in_turns(folder: Path) -> list[Raw]:
    """Rollouts of several turns and samples, with an engine that dies in the middle of a turn."""
    plan = make_plan(steps=2, groups=1, samples=2)
    run = a_run(folder, "fan_out", plan, Fate([Crash(3, Half.AFTER, role="engine0")]))
    await run.run()
    assert run.fate.exhausted
    return raw_records(run.log)


async def test_rollouts_of_several_turns_and_samples(tmp_path: Path) -> None:
    records = await in_turns(tmp_path)
    assert check(records, bound=0) == []
    chunk = Doctored(records)
    chunk.drop(chunk.places("rollout.progressed")[0])
    assert Kind.TORN in {finding.kind for finding in check(chunk.records(), bound=0)}
    twice = Doctored(records)
    ended = twice.places("turn.recorded")[0]
    twice.repeat(ended, ended + 1)
    assert Kind.REPEATED in {finding.kind for finding in check(twice.records(), bound=0)}
    stranger = Doctored(records)
    stranger.event("rollout.completed")["rollout"] = "train-0-000009-s9"
    assert Kind.NOT_REQUESTED in {finding.kind for finding in check(stranger.records(), bound=0)}


def test_the_bound_follows_from_the_settings() -> None:
    trainer = {"update_weights_interval": 2}
    rollout = {"max_staleness": 1, "over_sampling_batch_size": None, "rollout_batch_size": 4}
    assert staleness_bound({"rollout": rollout, "trainer": trainer}) == 2
    assert staleness_bound({"rollout": rollout | {"over_sampling_batch_size": 6}, "trainer": trainer}) == 4
    assert staleness_bound({}) is None


def test_the_command(clean: list[Raw], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "records.jsonl"
    lines = [{"position": p, "subject": s, "data": base64.b64encode(d).decode()} for p, s, d in clean]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([str(path), "--bound", "1"]) == 0
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines[:9], *lines[10:]]))
    assert main([str(path), "--bound", "1"]) == 1
    assert "hole: position 10 was expected, 11 came" in capsys.readouterr().out
