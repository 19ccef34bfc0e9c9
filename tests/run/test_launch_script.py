"""Test a launch script like slime's for Qwen3-4B, with the demo's model: it starts, is interrupted, starts
again and continues.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from schemas.checkpoints import CheckpointSaved
from schemas.evals import EvalCompleted
from schemas.runs import FinishReason, RunFinished, RunResumed
from schemas.steps import StepCommitted
from slime_events.app.demo.digits4 import write_data
from slime_events.app.demo.settings import BASE
from tests.harness.users.script import MODEL, ROOT
from tests.run.tiny import MARK, START_S, events_of, left_behind, of

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

STEPS = 4
SCRIPT = """#!/bin/bash
set -ex
export PYTHONBUFFERED=16

MODEL_ARGS=({model})
CKPT_ARGS=(
   --hf-checkpoint {place}/Qwen3-4B
   #--hf-checkpoint {place}/Qwen3-4B-FP8
   --ref-load {place}/Qwen3-4B_torch_dist
   --load {place}/Qwen3-4B_slime/
   --save {place}/Qwen3-4B_slime/
   --save-interval 2
)
ROLLOUT_ARGS=(
   --prompt-data {data}
   --input-key messages
   --label-key label
   --apply-chat-template
   --rollout-shuffle
   --rm-type deepscaler
   --num-rollout {steps}
   --rollout-batch-size 4
   --n-samples-per-prompt 4
   --rollout-max-response-len 40
   --rollout-temperature 0.8

   --global-batch-size 16
   --balance-data
)
EVAL_ARGS=(
   --eval-interval 2
   --eval-prompt-data aime {held_out}@[0:4]
   --n-samples-per-eval-prompt 1
   --eval-max-response-len 40
   --eval-top-p 0.7
)
PERF_ARGS=(
   --tensor-model-parallel-size 1
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --context-parallel-size 1
   --expert-model-parallel-size 1
   --expert-tensor-parallel-size 1

   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1

   # --micro-batch-size 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 4608
)
GRPO_ARGS=(
   --advantage-estimator grpo
   --use-kl-loss
   --kl-loss-coef 0.00
   --kl-loss-type low_var_kl
   --entropy-coef 0.00
   --eps-clip 0.2
   --eps-clip-high 0.28
)
OPTIMIZER_ARGS=(
   --optimizer adam
   --lr 1e-6
   --lr-decay-style constant
   --weight-decay 0.1
   --adam-beta1 0.9
   --adam-beta2 0.98
)
WANDB_ARGS=(
   # --use-wandb
)
SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 1
   --sglang-mem-fraction-static 0.7
)
MISC_ARGS=(
   --attention-dropout 0.0
   --hidden-dropout 0.0
   --accumulate-allreduce-grads-in-fp32
   --attention-softmax-in-fp32
   --attention-backend flash
)

slime-events train \\
   --actor-num-nodes 1 \\
   --actor-num-gpus-per-node 1 \\
   --colocate \\
   ${{MODEL_ARGS[@]}} \\
   ${{CKPT_ARGS[@]}} \\
   ${{ROLLOUT_ARGS[@]}} \\
   ${{OPTIMIZER_ARGS[@]}} \\
   ${{GRPO_ARGS[@]}} \\
   ${{WANDB_ARGS[@]}} \\
   ${{PERF_ARGS[@]}} \\
   ${{EVAL_ARGS[@]}} \\
   ${{SGLANG_ARGS[@]}} \\
   ${{MISC_ARGS[@]}}
"""


class Terminal:
    """A shell in a user's folder, with `slime-events` on its path."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        command = folder / "bin" / "slime-events"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m slime_events.app.cli.main "$@"\n')
        command.chmod(0o755)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._env = os.environ | {"PYTHONPATH": path, MARK: self.mark, "OMP_NUM_THREADS": "1"}
        self._env["PATH"] = f"{command.parent}{os.pathsep}{os.environ['PATH']}"

    def run(self, *words: str, interrupt_at: str = "") -> tuple[int, str]:
        """Return the exit code and the output. interrupt_at: output after which Ctrl-C comes."""
        output_file = self.folder / f"said-{uuid.uuid4().hex}"
        with output_file.open("wb") as out:
            process = subprocess.Popen(
                words, stdout=out, stderr=out, cwd=self.folder, env=self._env, start_new_session=True
            )
        try:
            until = time.monotonic() + START_S
            while interrupt_at and interrupt_at not in output_file.read_text():
                assert process.poll() is None, output_file.read_text()
                assert time.monotonic() < until, output_file.read_text()
                time.sleep(0.2)
            if interrupt_at:
                os.killpg(process.pid, signal.SIGINT)
            return process.wait(START_S), output_file.read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(60)


def test_a_script_of_slime_s_starts_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    data, held_out = write_data(tmp_path / "data", train=64, held_out=8)
    (tmp_path / "Qwen3-4B").symlink_to(BASE)
    script, shell = tmp_path / "run-qwen3-4B.sh", Terminal(tmp_path)
    model = " ".join(MODEL.split())
    script.write_text(SCRIPT.format(place=tmp_path, data=data, held_out=held_out, steps=STEPS, model=model))
    code, output = shell.run("bash", str(script), interrupt_at=f"step 1/{STEPS}")
    assert code == 130, output
    code, output = shell.run("bash", str(script))
    named = re.search(r"`(slime-events resume [^`]+)`", output)
    assert named is not None, output
    assert code == 2
    code, output = shell.run(*shlex.split(named[1]))
    assert code == 0, output
    (folder,) = (tmp_path / "slime-runs").iterdir()
    events = events_of(folder)
    assert [event.step for event in of(events, StepCommitted)] == list(range(STEPS))
    assert [event.reason for event in of(events, RunFinished)] == [FinishReason.INTERRUPTED, FinishReason.ALL_STEPS]
    assert len(of(events, RunResumed)) == 1
    assert {STEPS} <= {event.version for event in of(events, CheckpointSaved)}
    assert {0, STEPS} <= {event.version for event in of(events, EvalCompleted)}
    assert list((tmp_path / "Qwen3-4B_slime").iterdir()), "its checkpoints are where the script wants them"
    assert left_behind(shell.mark) == []
