"""Runs as they are: nothing to find, and counts that are those of the run."""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.arrays import Array, unpack
from schemas.codec import decode
from schemas.errors import BlobMissing
from slime_events.analysis.audit import weights as weight_checks
from slime_events.analysis.audit.audit import Audit, audit
from slime_events.analysis.audit.groups import figures
from slime_events.analysis.audit.ledger import Rules, rules_of
from slime_events.analysis.audit.recorded_rollouts import recorded_ends
from slime_events.analysis.audit.report import Report
from slime_events.app.cli.render.audit_text import report_text
from slime_events.core.config.settings import TrainSettings
from storage.log import Recorded
from storage.memory_log import MemoryLog
from tests import made
from tests.audit.clean import CleanLogs, Run
from tests.golden.log_file import FOLDER, read_records


def counts(report: Report, check: str) -> dict[str, Any]:
    (check_counts,) = [entry.counts for entry in report.checks if entry.name == check]
    return check_counts


async def test_a_synchronous_run(synchronous: Run) -> None:
    report = await synchronous.doctored().audit(synchronous.auditor())
    assert report.clean, report_text(report, 0)
    assert report.events == counts(report, "positions")["events"] == len(synchronous.records)
    types = Counter(recorded.envelope.type for recorded in synchronous.records)
    causes = sum(recorded.envelope.cause is not None for recorded in synchronous.records)
    activations = types["weights.activated"]
    assert {check.name: check.counts for check in report.checks} == {
        "positions": {"events": len(synchronous.records), "causes": causes},
        "lifetime": {"end": "finished (all_steps)", "resumptions": 0, "events after an end": 0},
        "prompts": {"drawn": 17, "sources": 1, "from outside": 0, "of evaluations": 8, "refused": 3},
        "rollouts": {"requests": 58, "samples": 58, "completed": 58},
        "tokens": {
            "rollouts": 58, "turns": 0, "chunks": types["rollout.progressed"], "tokens": 58 * 24, "blobs": 0,
            "rollouts with blobs not looked at": 0,
        },
        "rewards": {"assigned": 58, "failed": 0, "waiting for a grader": 0},
        "verdicts": {"accepted": 10, "rejected (filter)": 4},
        "batches": {"batches": 5, "samples": 30, "rewards not renormalised": 0},
        "steps": {
            "steps": 5, "tokens": 774, "trainers": 1, "restored": 0, "steps after an approximate optimizer": 0,
            "batches waiting for the trainer": 0,
        },
        "training": {"trained": 30},
        "staleness": {"at worst": 0, "allowed": 0, "samples by versions behind": {"0": 30}},
        "evaluations": {"evaluations": 4, "samples": 16, "under way": 0},
        "weights": {"versions": 6, "activations": activations, "checkpoints": 2},
        "archive": {"segments": 0, "positions": 0},
        "fold": {"ends compared": 1, "ends of other fold rules": 0},
        "files": {"verified": 6, "removed since": 0},
    }  # fmt: skip


async def test_an_asynchronous_run_with_a_surplus(asynchronous: Run) -> None:
    report = await asynchronous.doctored().audit(asynchronous.auditor())
    assert report.clean, report_text(report, 0)
    staleness = counts(report, "staleness")
    assert 0 < staleness["at worst"] <= staleness["allowed"] == asynchronous.plan.staleness_bound
    assert sum(staleness["samples by versions behind"].values()) == counts(report, "training")["trained"]


async def test_a_learner_with_the_log_that_it_followed_and_without(clean: CleanLogs) -> None:
    learner = clean["learner"]
    expected = {"batches": 2, "empty": 0, "samples": 12, "left out of their groups": 0, "graded differently": 0}
    for changes, unseen in ({}, 0), ({"parent": None}, 12), ({"rules": Rules()}, 0):
        report = await learner.doctored().audit(learner.auditor(files=False, **changes))
        assert report.clean, report_text(report, 0)
        assert counts(report, "followed") == expected | {"of them not looked up": unseen}
    parent = copy.deepcopy(learner.parent)
    assert parent is not None
    *_, unfinished, other = parent.samples.values()
    unfinished.ended, other.reward = 0, 9.0
    report = await learner.doctored().audit(learner.auditor(files=False, parent=parent))
    (finding,) = report.findings
    assert (finding.check, finding.event) == ("followed", "batch.sealed of 1")
    assert unfinished.sample in finding.wrong
    unfinished.ended = 1
    report = await learner.doctored().audit(learner.auditor(files=False, parent=parent))
    assert report.clean
    assert counts(report, "followed") == expected | {"of them not looked up": 0, "graded differently": 1}


async def test_recorded_rollouts_with_the_log_that_has_them_and_without(clean: CleanLogs) -> None:
    recalling = clean["recalling"]
    for changes, unseen in ({}, 0), ({"recorded": None}, 12):
        report = await recalling.doctored().audit(recalling.auditor(files=False, **changes))
        assert report.clean, report_text(report, 0)
        assert counts(report, "recalled") == {"groups": 4, "rollouts": 12, "of them not looked up": unseen}


async def test_recorded_rollouts_are_looked_up_where_their_prompts_say(clean: CleanLogs, tmp_path: Path) -> None:
    recalling = clean["recalling"]
    made.archived(tmp_path, recalling.others)
    doctored, log = recalling.doctored(), MemoryLog("sim")
    for number, record in enumerate(each for each in doctored.records if each.type == "prompt.submitted"):
        record.event["source"]["path"] = f"{tmp_path}/{'sim' if number < 3 else 'gone'}"
    log.records = list(doctored.recorded())
    assert recalling.recorded is not None
    assert await recorded_ends(log) == {f"{tmp_path}/sim": recalling.recorded["archive/first"]}
    for record in doctored.records:
        record.event.pop("recalled", None)
    log.records = list(doctored.recorded())
    assert await recorded_ends(log) == {}


async def test_a_tighter_bound_is_broken(asynchronous: Run) -> None:
    tight = msgspec.structs.replace(asynchronous.plan, max_staleness=0, draw=None)
    report = await asynchronous.doctored().audit(asynchronous.auditor(rules=Rules(tight), files=False))
    assert {finding.check for finding in report.findings} == {"staleness"}
    assert "and the bound is 0, so it is further off policy than the settings allow" in str(report.findings[0])


async def test_every_beginning_of_a_run_is_clean(synchronous: Run) -> None:
    """Audit each beginning as during the run, or after kill -9 of everything: what is open is waiting, not wrong."""
    for length in range(1, len(synchronous.records), 11):
        log = synchronous.doctored()
        log.records = log.records[:length]
        report = await log.audit(synchronous.auditor(files=False))
        assert report.clean, report_text(report, 0)
    log.records = log.records[: log.place(log.find("step.committed", nth=1))]
    report = await log.audit(synchronous.auditor(files=False))
    assert counts(report, "training")["waiting for step 1 to be committed"] == 6
    assert counts(report, "steps")["batches waiting for the trainer"] == 1
    assert counts(report, "lifetime")["end"] == "running"
    log.records = log.records[: log.place(log.find("reward.assigned"))]
    report = await log.audit(synchronous.auditor(files=False))
    completed = sum(record.type == "rollout.completed" for record in log.records)
    assert counts(report, "rewards") == {"assigned": 0, "failed": 0, "waiting for a grader": completed}
    rollouts = counts(report, "rollouts")
    assert rollouts["completed"] == completed
    assert rollouts["samples"] == sum(
        number for fate, number in rollouts.items() if fate not in ("requests", "samples")
    )
    assert counts(report, "evaluations")["under way"] == 1


async def test_without_settings_what_depends_on_them_is_counted(synchronous: Run) -> None:
    report = await synchronous.doctored().audit(Audit("sim", fetch=unpack, files=False))
    assert report.clean
    assert counts(report, "batches")["rewards not renormalised"] == counts(report, "batches")["samples"]
    assert counts(report, "staleness")["allowed"] is None


def test_one_reward_has_no_spread() -> None:
    assert figures([]) == {}
    assert figures([0.5]) == {"count": 1.0, "mean": 0.5, "min": 0.5, "max": 0.5}
    assert figures([0.0, 1.0])["std"] == pytest.approx(0.5**0.5)


def test_the_rules_are_in_the_settings() -> None:
    settings = TrainSettings()
    settings = msgspec.structs.replace(
        settings, rollout=msgspec.structs.replace(settings.rollout, num_rollout=7, max_staleness=3)
    )
    rules = rules_of(msgspec.to_builtins(settings))
    assert rules.plan is not None
    assert (rules.plan.steps, rules.plan.staleness_bound) == (7, 3)
    assert rules.algorithm == settings.algorithm
    assert rules_of({"rollout": {"of": "another version"}}) == Rules()


async def test_what_a_resumption_changes_holds_from_there_on(synchronous: Run) -> None:
    """The steps that it adds, and no other run's."""
    settings = made.settings(rollout={"num_rollout": 3, "rollout_batch_size": 2, "n_samples_per_prompt": 3})
    log = synchronous.doctored()
    log.find("run.started").event["settings"] = msgspec.to_builtins(settings)
    resumed = log.insert(log.records[0], after=log.find("run.started"))
    resumed.subject = "slime.sim.run.resumed.run"
    resumed.body["event"] = {
        "type": "run.resumed", "incarnation": 1, "code_version": "", "settings": {"rollout": {"num_rollout": 9}},
    }  # fmt: skip
    log.renumber()
    report = await log.audit(Audit("sim", fetch=unpack, files=False))
    (finding,) = [f for f in report.findings if "all steps" in str(f)]
    assert "its reason is that all steps are done, and 5 of 9 are committed, so the run ended too early" in str(finding)


@pytest.mark.parametrize("original", ["there", "gone"])
async def test_a_changed_weight_file(synchronous: Run, tmp_path: Path, original: str) -> None:
    """Change a file in a copied run's folder: the audit reads that one, whatever became of the files that the
    log names.
    """
    weights = tmp_path / "weights"
    shutil.copytree(synchronous.folder / "weights", weights)
    log = synchronous.doctored()
    for record in log.records:
        if record.type == "weights.published" and original == "gone":
            record.event["url"] = record.event["url"].replace(str(synchronous.folder), "/gone")
    published = log.find("weights.published", nth=3)
    file = weights / Path(published.event["url"]).name / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    report = await log.audit(synchronous.auditor(weights=weights))
    (files_check,) = [check for check in report.checks if check.name == "files"]
    assert files_check.counts == {"verified": 6, "removed since": 0}
    (finding,) = files_check.findings
    assert finding.position == published.position
    assert str(finding).endswith("so engines and exports would use damaged weights")
    assert "tensor 'w'" in str(finding)


async def test_a_version_that_is_removed_while_it_is_read(
    synchronous: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remove the version as a live run does."""
    weights = tmp_path / "weights"
    shutil.copytree(synchronous.folder / "weights", weights)
    log = synchronous.doctored()
    for record in log.records:
        if record.type == "weights.published":
            record.event["url"] = record.event["url"].replace(str(synchronous.folder), str(tmp_path))

    def removed(folder: Path, digest: str) -> None:
        shutil.rmtree(folder)
        raise FileNotFoundError(folder)

    monkeypatch.setattr(weight_checks, "verify", removed)
    report = await log.audit(synchronous.auditor())
    assert counts(report, "files") == {"verified": 0, "removed since": 6}
    assert "files" not in {finding.check for finding in report.findings}


async def test_blobs_are_looked_at_or_counted(synchronous: Run) -> None:
    log = synchronous.doctored()
    chunk = log.find("rollout.progressed", where=lambda e: e["start"] == 0)
    data = chunk.event["tokens"].pop("data")
    chunk.event["tokens"]["blob"] = {"sha256": Array("int32", 8, data).digest(), "size": len(data)}

    def fetch(array: Array) -> Any:
        return unpack(array, data) if array.blob is not None else unpack(array)

    def missing(array: Array) -> Any:
        raise BlobMissing(f"no blob {array.blob and array.blob.sha256[:4]}")

    seen = await log.audit(synchronous.auditor(fetch=fetch, files=False))
    assert (counts(seen, "tokens")["blobs"], counts(seen, "tokens")["rollouts with blobs not looked at"]) == (1, 0)
    assert {finding.check for finding in seen.findings} == {"fold"}, "its bytes in the log are others, its tokens not"
    unseen = await log.audit(synchronous.auditor(fetch=None, files=False))
    assert counts(unseen, "tokens")["rollouts with blobs not looked at"] == 1
    lost = await log.audit(synchronous.auditor(fetch=missing, files=False))
    (finding,) = [finding for finding in lost.findings if finding.check == "tokens"]
    assert "no blob" in str(finding)


async def test_the_golden_log_is_read_to_its_end() -> None:
    """It holds every event there is, with digests that are made up: just those and their like are found."""
    for path in sorted(FOLDER.glob("*.slimelog")):
        records = [decode(data) for data in read_records(path)]
        log = MemoryLog("golden")
        for position, (envelope, data) in enumerate(zip(records, read_records(path), strict=True), 1):
            log.records.append(Recorded(position, envelope.subject, envelope, data))
        report = await audit(log.read(), Audit("golden", files=False))
        assert report.events == len(records)
        checks = {finding.check for finding in report.findings}
        assert not checks & {"positions", "staleness", "archive", "training"}, report_text(report, 0)
        assert "tokens" in checks


async def test_a_record_that_cannot_be_read_ends_the_audit(synchronous: Run) -> None:
    log = synchronous.doctored()
    record = log.records[20]
    record.event["type"] = "reward.guessed"
    report = await log.audit(synchronous.auditor(files=False))
    assert not report.clean
    assert report.events == 20
    assert report.unread is not None
    assert "reward.guessed" in report.unread
    assert "reading stopped" in report_text(report, 5)


async def test_the_text_is_aligned_and_says_how_much_more(synchronous: Run) -> None:
    log = synchronous.doctored()
    for record in log.records:
        record.body["run"] = "other"
    report = await log.audit(synchronous.auditor(files=False))
    lines = report_text(report, 2).splitlines()
    assert lines[0].startswith("WRONG  positions    no gap")
    assert lines[3] == f"       and {2 * len(log.records) - 2} more of this check (--most 0 shows all)"
    checked = [line for line in lines if line.startswith(("ok", "WRONG"))]
    assert [line.index(check.promise) for line, check in zip(checked, report.checks, strict=True)] == [20] * len(
        checked
    )
    assert len({len(line) - len(line[20:].split("  ")[-1].lstrip()) for line in checked}) == 1, "so are the counts"
