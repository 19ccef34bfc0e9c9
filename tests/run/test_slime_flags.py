"""`slime-events train` with the words of slime's own GRPO scripts: names unchanged, sizes of the demo's model."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.evals import EvalCompleted
from schemas.steps import StepCommitted
from slime_events.app.cli.main import main
from slime_events.app.demo.digits4 import write_data
from slime_events.app.demo.settings import BASE
from tests.run.tiny import MARK, events_of, left_behind, of

MODEL = """
--swiglu --num-layers 2 --hidden-size 128 --ffn-hidden-size 384 --num-attention-heads 4 --group-query-attention
--num-query-groups 2 --use-rotary-position-embeddings --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6
--rotary-base 10000 --vocab-size 264 --kv-channels 32 --qk-layernorm
"""
GRPO = """
--actor-num-nodes 1 --actor-num-gpus-per-node 1 --rollout-num-gpus 1
--advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl --entropy-coef 0.00
--eps-clip 0.2 --eps-clip-high 0.28
--rollout-batch-size 4 --n-samples-per-prompt 4 --global-batch-size 16 --num-rollout 2
--rollout-max-response-len 40 --rollout-temperature 1 --rollout-shuffle --balance-data
--over-sampling-batch-size 8
--dynamic-sampling-filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std
--input-key messages --label-key label --apply-chat-template --rm-type exact
--save-interval 2 --eval-interval 2 --n-samples-per-eval-prompt 1 --eval-max-response-len 40 --eval-top-p 0.7
--optimizer adam --lr 1e-4 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98
--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --context-parallel-size 1
--expert-model-parallel-size 1 --expert-tensor-parallel-size 1
--recompute-granularity full --recompute-method uniform --recompute-num-layers 1
--use-dynamic-batch-size --max-tokens-per-gpu 4608
--attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
--attention-backend flash --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.7
"""


def words(folder: Path) -> list[str]:
    """The command's, with data of its own."""
    data, held_out = write_data(folder / "data", train=64, held_out=8)
    paths = f"--hf-checkpoint {BASE} --ref-load {BASE} --prompt-data {data} --eval-prompt-data digits4 {held_out}@[0:4]"
    return f"train {GRPO} {MODEL} {paths} --run slime --runs-dir {folder}".split()


def train(folder: Path) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "slime_events.app.cli.main", *words(folder)],
        capture_output=True,
        text=True,
        timeout=600.0,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.real
def test_slimes_grpo_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    done = train(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "step 2/2" in done.stderr
    assert left_behind(mark) == []
    events = events_of(tmp_path / "slime")
    steps = of(events, StepCommitted)
    assert [one.samples for one in steps] == [16, 16]
    # Over-sampling keeps its surplus for the next step, where its log-probs are of the version before.
    assert steps[0].metrics["train_rollout_logprob_abs_diff_max"] < 1e-4
    assert steps[0].metrics["kl_loss"] == 0 < steps[1].metrics["kl_loss"], "against the reference model"
    assert list(of(events, BatchSealed)[0].groups) != [f"train-0-{n:06d}" for n in range(4)], "shuffled"
    evaluated = [(one.version, one.oldest_version, one.newest_version) for one in of(events, EvalCompleted)]
    assert evaluated == [(0, 0, 0), (2, 2, 2)]
    assert [one.version for one in of(events, CheckpointSaved)] == [2]


def test_model_flags_of_another_model_end_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words(tmp_path), "--num-layers", "36"]) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    assert error.startswith("error: ")
    assert "--num-layers 36 (the checkpoint says 2)" in error
