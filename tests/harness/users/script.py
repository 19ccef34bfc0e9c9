"""The launch script of a user of slime: names unchanged, sizes of the demo's model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from slime_events.app.demo.digits4 import write_data
from slime_events.app.demo.settings import BASE

FILES = Path(__file__).parent / "plug_points"
ROOT = Path(__file__).parents[3]
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


def words(folder: Path, run: str = "slime") -> list[str]:
    """The command's, with data of its own and runs in the folder."""
    data, held_out = write_data(folder / "data", train=64, held_out=8)
    paths = f"--hf-checkpoint {BASE} --ref-load {BASE} --prompt-data {data} --eval-prompt-data digits4 {held_out}@[0:4]"
    return f"train {GRPO} {MODEL} {paths} --run {run} --runs-dir {folder}".split()


def users_folder(folder: Path) -> Path:
    """A copy of the user's files."""
    return Path(shutil.copytree(FILES, folder / "user", ignore=shutil.ignore_patterns("__pycache__")))


def slime_events(
    *command: str, cwd: Path, timeout_s: float = 600.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`slime-events` in a process of its own, in a folder that is not the project's. Whatever ends the wait ends it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    words = [sys.executable, "-m", "slime_events.app.cli.main", *command]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | variables
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=env
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.terminate()  # a run that is killed leaves its servers behind for a while
            process.wait(30)
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)
