"""`slime-events train` with the words of slime's own GRPO scripts, both loggers, and a user's files at as many plug
points as go together.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.evals import EvalCompleted
from schemas.steps import StepCommitted
from slime_events.app.cli.main import main
from storage.log import Recorded
from tests.harness.users.cases import CASES
from tests.harness.users.script import slime_events, users_folder, words
from tests.harness.users.trial import AFTERWARDS, Ran
from tests.metrics.read_back import tensorboard_points, wandb_rows
from tests.run.tiny import MARK, events_of, left_behind, of

TOGETHER = (
    *("reward", "sample hooks", "sample filter", "all samples", "rollout log", "reward post-process"),
    *("correction", "loss reducer", "init and train step", "before log-probs"),
)
"""Names of the cases whose files are in one run here; `make users` gives each a run of its own."""
ALONE = ("correction", "loss reducer")
"""Their loss is not known beforehand where samples are removed."""
LOGGERS = """
--use-tensorboard --tb-project-name digits --tb-experiment-name first
--use-wandb --wandb-mode offline --wandb-project digits --wandb-group first --log-passrate
"""
METRICS = {
    *("rollout/raw_reward", "rollout/rewards", "rollout/response_len/mean", "rollout/truncated_ratio"),
    *("train/loss", "train/pg_loss", "train/kl_loss", "train/grad_norm", "train/lr-pg_0", "train/own_apart"),
    *("perf/rollout_time", "perf/train_time", "perf/step_time", "perf/tokens_per_gpu_per_sec"),
    *("passrate/pass@1", "passrate/pass@4", "eval/digits4", "eval/digits4/response_len/mean"),
}
"""Some that slime gives such a run."""


@dataclass(frozen=True, slots=True)
class Launched:
    """folder: the user's own, from where the script was started."""

    folder: Path
    run: Path
    events: list[Recorded]
    left: list[str]

    def seen_by_users(self) -> Ran:
        """The run as the cases look at it."""
        calls = [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]
        return Ran(self.events, calls)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    place, mark = tmp_path_factory.mktemp("slime"), uuid.uuid4().hex
    user = users_folder(place)
    flags = [word for case in CASES if case.name in TOGETHER for word in case.flags.split()]
    variables = {"CALLS": str(user / "calls"), "TENSORBOARD_DIR": "", MARK: mark}
    done = slime_events(*words(place), *flags, *LOGGERS.split(), cwd=user, **variables)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "step 2/2" in done.stderr
    return Launched(user, place / "slime", events_of(place / "slime"), left_behind(mark))


@pytest.mark.real
def test_slimes_grpo_example_trains(launched: Launched) -> None:
    assert launched.left == []
    steps = of(launched.events, StepCommitted)
    assert [step.samples for step in steps] == [16, 16]
    # Over-sampling keeps its surplus for the next step, where its log-probs are of the version before.
    assert steps[0].metrics["train_rollout_logprob_abs_diff_max"] < 1e-4
    assert steps[0].metrics["kl_loss"] == 0 < steps[1].metrics["kl_loss"], "against the reference model"
    assert list(of(launched.events, BatchSealed)[0].groups) != [f"train-0-{n:06d}" for n in range(4)], "shuffled"
    evaluated = [
        (event.version, event.oldest_version, event.newest_version) for event in of(launched.events, EvalCompleted)
    ]
    assert evaluated == [(0, 0, 0), (2, 2, 2)]
    assert [event.version for event in of(launched.events, CheckpointSaved)] == [2]


@pytest.mark.real
def test_the_users_files_were_called_and_their_effect_is_in_the_log(launched: Launched) -> None:
    ran = launched.seen_by_users()
    names = {name for case in CASES if case.name in TOGETHER for name in case.calls}
    assert names <= {call["call"] for call in ran.calls}
    for case in CASES:
        if case.name in TOGETHER and case.name not in ALONE:
            case.effect(ran)
    functions = of(launched.events, StepCommitted)[0].functions
    assert functions.keys() == {
        f"custom_{name}_path"
        for name in (
            *("advantage_function", "tis_function", "pg_loss_reducer_function", "megatron_init"),
            *("megatron_before_log_prob_hook", "megatron_before_train_step_hook"),
        )
    }


@pytest.mark.real
@pytest.mark.parametrize("command", AFTERWARDS)
def test_the_run_with_all_of_them_can_be_checked_and_made_again(command: str, launched: Launched) -> None:
    done = slime_events(command, "slime", "--runs-dir", str(launched.run.parent), cwd=launched.folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.real
def test_the_loggers_have_slimes_names(launched: Launched) -> None:
    pytest.importorskip("wandb")
    points = tensorboard_points(launched.folder / "tensorboard_log" / "digits" / "first")
    assert points.keys() >= METRICS
    (file,) = launched.run.glob("wandb/offline-run-*/run-*.wandb")
    assert {name for row in wandb_rows(file) for name in row} >= METRICS | {"rollout/step", "train/step", "eval/step"}


def test_model_flags_of_another_model_end_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words(tmp_path), "--num-layers", "36"]) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    assert error.startswith("error: ")
    assert "--num-layers 36 (the checkpoint says 2)" in error
