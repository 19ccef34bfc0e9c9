"""Runs that cannot start: every plug point, data file, archive, key, port and folder, each wrong in some way."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from slime_events.app.demo.settings import BASE, prepare_demo
from slime_events.core.config.derivations import derive
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from tests import made
from tests.cli.small_run import RUN, events, finished, recorded
from tests.harness.wrong_starts import own_code

TRAIN = ("train", "--config", "good.toml", "--runs-dir", "runs", "--run", "y", "--plain")
DEMO = ("demo", "--runs-dir", "runs", "--plain")
ARCHIVE = ("--archive-prompts", f"archives/{RUN}")
DEAD = "127.0.0.1:9"
"""Nobody listens there: it is the port of a service that nobody runs."""
OWN = """
import asyncio


async def reward(args, sample): ...
async def reward_of_one(sample): ...
def filter_of_three(args, samples, extra): ...
def correction(args, pg_loss): ...
def filter_of_two(args, samples): ...
def buffer_of_two(args, buffer): ...
def generate(args, sample, sampling_params): ...
async def generate_of_one(sample): ...


class Source:
    def __init__(self, args): ...


class SourceOfTwo:
    def __init__(self, args, more): ...
    def get_samples(self, num_samples): ...


number = 7
"""
ROW = {"messages": [{"role": "user", "content": "1+1"}], "label": "2"}
FILES = {
    "own.py": OWN,
    "empty.jsonl": "",
    "blank.jsonl": "\n\n\n",
    "broken.jsonl": '{"messages": [\n',
    "list.jsonl": "[1, 2]\n",
    "other.jsonl": '{"question": "1+1", "label": "2"}\n',
    "truth.jsonl": '{"messages": true, "label": "2"}\n',
    "key.yaml": "datasets: [{name: a, path: data/eval.jsonl, temprature: 1}]\n",
    "pathless.yaml": "datasets: [{name: a}]\n",
    "absent.yaml": "datasets: [{name: a, path: nowhere.jsonl}]\n",
    "type.yaml": "datasets: [{name: a, path: data/eval.jsonl, temperature: hot}]\n",
    "twice.yaml": "datasets: [{name: a, path: data/eval.jsonl}, {name: a, path: data/eval.jsonl}]\n",
    "grader.yaml": "datasets: [{name: a, path: data/eval.jsonl, rm_type: nosuch}]\n",
    "reward.yaml": "datasets: [{name: a, path: data/eval.jsonl, custom_rm_path: own.py:nothing}]\n",
    "made.yaml": "datasets: [{name: a, path: data/eval.jsonl, custom_generate_function_path: own.py:nothing}]\n",
    "field.yaml": "datasets: [{name: a, path: data/eval.jsonl, input_key: nosuch}]\n",
    "unlabelled.jsonl": '{"messages": [{"role": "user", "content": "1+1"}]}\n',
    "ungraded.jsonl": json.dumps({**ROW, "metadata": {"rm_type": "nope"}}),
    "uninstructed.jsonl": json.dumps({**ROW, "metadata": {"rm_type": "ifbench", "instruction_id_list": ["a:b"]}}),
    "unjudged.jsonl": json.dumps({**ROW, "metadata": {"rm_type": "remote_rm"}}),
    "text.txt": "1+1\n",
    "false.parquet": "PAR0",
    "bad.toml": "[run\n",
    "unknown.toml": '[run]\nnmae = "y"\n',
    "a-file": "in the way",
}


@dataclass(frozen=True, slots=True)
class Case:
    """words: of the command line, in a folder made by `prepare`. names: what its sentence has to name, one text or
    several. codes: that it may end with.
    """

    name: str
    words: tuple[str, ...]
    names: str | tuple[str, ...]
    codes: tuple[int, ...] = (1, 2)

    @classmethod
    def train(cls, name: str, *flags: str, names: str = "") -> Case:
        return cls(name, (*TRAIN, *flags), names or flags[0])


def prepare(folder: Path) -> None:
    """Write the files that the cases name: good settings with their data, a recorded run, and wrong files."""
    settings = prepare_demo(folder / "data")
    (folder / "good.toml").write_text(to_toml(settings))
    for name, text in (FILES | own_code.FILES).items():
        (folder / name).write_text(text)
    shutil.copytree(BASE, folder / "no-weights", ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copytree(BASE, folder / "no-tokenizer", ignore=shutil.ignore_patterns("token*"))
    shutil.copytree(BASE, folder / "no-family", ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((BASE / "config.json").read_text())
    (folder / "no-family" / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchModel"]}))
    shutil.copytree(BASE, folder / "other-tokens")
    tokens = (BASE / "tokenizer.json").read_text()
    (folder / "other-tokens" / "tokenizer.json").write_text(tokens.replace("<think>", "<consider>"))
    (folder / "empty").mkdir()
    for run in (RUN, "y"):
        _archive(folder / "archives", run, settings)


def _archive(folder: Path, run: str, settings: TrainSettings) -> None:
    """Archive a run with the events of `small_run`, recorded under these settings."""
    started = made.started(derive(settings)[0], code_version="0.1.0")
    made.archived(folder, recorded(finished([started, *events()[1:]])), run=run)


LOSS = ("--loss-type", "custom_loss", "--custom-loss-function-path")
TIS = ("--custom-tis-function-path",)
REWARDS = [
    Case.train("reward: no function of the usual name", "--custom-rm-path", "own.py"),
    Case.train("reward: other arguments", "--custom-rm-path", "own.py:reward_of_one"),
    Case.train("reward: no such grader", "--rm-type", "mahts"),
    Case.train(
        "reward: nobody at its address", "--rm-type", "remote_rm", "--rm-url", f"http://{DEAD}/", names="--rm-url"
    ),
    Case.train("reward: no address", "--rm-type", "remote_rm", "--rm-url", "judge", names="rm_url"),
]
PLUG_POINTS = [
    Case.train("filter: other arguments", "--dynamic-sampling-filter-path", "own.py:filter_of_three"),
    Case.train("generate: not async", "--custom-generate-function-path", "own.py:generate"),
    Case.train("generate: other arguments", "--custom-generate-function-path", "own.py:generate_of_one"),
    Case.train("loss: none named", "--loss-type", "custom_loss", names="custom_loss_function_path"),
    Case.train("loss: other arguments", *LOSS, "own.py:filter_of_three", names="--custom-loss-function-path"),
    Case.train("advantage: other arguments", "--custom-advantage-function-path", "own.py:filter_of_three"),
    Case.train("correction: other names", "--use-tis", *TIS, "own.py:correction", names=TIS[0]),
    Case.train("correction: nothing calls it", *TIS, "own.py:correction", names="custom_tis_function_path"),
    Case.train("sum: other arguments", "--custom-pg-loss-reducer-function-path", "own.py:buffer_of_two"),
    Case.train("post-processing: other arguments", "--custom-reward-post-process-path", "own.py:filter_of_three"),
    Case.train("init: other arguments", "--custom-megatron-init-path", "own.py:buffer_of_two"),
    Case.train("hook: other arguments", "--custom-megatron-before-train-step-hook-path", "own.py:filter_of_three"),
    Case.train(
        "hook: the second takes one argument",
        "--rollout-sample-hook-path",
        "own.py:filter_of_two",
        "--rollout-sample-hook-path",
        "own.py:generate_of_one",
        names="generate_of_one",
    ),
    Case.train("sample filter: other arguments", "--rollout-sample-filter-path", "own.py:filter_of_three"),
    Case.train("log function: other arguments", "--custom-rollout-log-function-path", "own.py:filter_of_three"),
    Case.train("convert: other arguments", "--custom-convert-samples-to-train-data-path", "own.py:filter_of_three"),
    Case.train("model: other arguments", "--custom-model-provider-path", "own.py:filter_of_two"),
    Case.train("step data: other arguments", "--rollout-data-postprocess-path", "own.py:generate_of_one"),
    Case.train("written weights: other arguments", "--custom-update-weight-post-write-path", "own.py:filter_of_two"),
    Case.train(
        "convert: it makes the rewards",
        "--custom-convert-samples-to-train-data-path",
        "own.py:filter_of_two",
        "--custom-reward-post-process-path",
        "own.py:filter_of_two",
        names="custom_reward_post_process_path",
    ),
    Case.train("data source: no get_samples", "--data-source-path", "own.py:Source"),
    Case.train("data source: other arguments", "--data-source-path", "own.py:SourceOfTwo"),
    Case.train(
        "buffer filter: other arguments",
        *ARCHIVE,
        "--buffer-filter-path",
        "own.py:buffer_of_two",
        names="buffer_of_two",
    ),
]
DATA = [
    Case.train("prompts: no such file", "--prompt-data", "nowhere.jsonl", names="nowhere.jsonl"),
    Case.train("prompts: a folder", "--prompt-data", "empty"),
    Case.train("prompts: empty", "--prompt-data", "empty.jsonl"),
    Case.train("prompts: blank lines", "--prompt-data", "blank.jsonl"),
    Case.train("prompts: no JSON", "--prompt-data", "broken.jsonl"),
    Case.train("prompts: no object", "--prompt-data", "list.jsonl"),
    Case.train("prompts: no such key", "--prompt-data", "other.jsonl", names="messages"),
    Case.train("prompts: of another type", "--prompt-data", "truth.jsonl", names="messages"),
    Case.train("prompts: no label", "--prompt-data", "unlabelled.jsonl", names="label"),
    Case.train("prompts: an unknown grader", "--prompt-data", "ungraded.jsonl", names="nope"),
    Case.train("prompts: an unknown instruction", "--prompt-data", "uninstructed.jsonl", names="a:b"),
    Case.train("prompts: a judge that the run does not have", "--prompt-data", "unjudged.jsonl", names="--rm-url"),
    Case.train("prompts: another key asked for", "--input-key", "question", names="question"),
    Case.train("prompts: an empty slice", "--prompt-data", "data/train.jsonl@[5:5]", names="data/train.jsonl"),
    Case.train("prompts: an unknown ending", "--prompt-data", "text.txt"),
    Case.train("prompts: no Parquet", "--prompt-data", "false.parquet"),
    Case.train("prompts: an unknown store", "--prompt-data", "nostore://bucket/x.jsonl"),
    Case.train("evaluation: no such file", "--eval-prompt-data", "a", "nowhere.jsonl", names="nowhere.jsonl"),
    Case.train("evaluation: empty", "--eval-prompt-data", "a", "empty.jsonl"),
    Case.train("evaluation: no such key", "--eval-input-key", "question", names="question"),
    Case.train("evaluation: no such YAML", "--eval-config", "nowhere.yaml", names="nowhere.yaml"),
    Case.train(
        "evaluation: an unknown key", "--eval-config", "key.yaml", names="key.yaml: set 'a' has no key temprature"
    ),
    Case.train("evaluation: no path", "--eval-config", "pathless.yaml", names="pathless.yaml: set 'a' has no path"),
    Case.train(
        "evaluation: a file that is not there", "--eval-config", "absent.yaml", names="set 'a': path nowhere.jsonl"
    ),
    Case.train("evaluation: of another type", "--eval-config", "type.yaml", names="set 'a': temperature is 'hot'"),
    Case.train(
        "evaluation: one name twice", "--eval-config", "twice.yaml", names="twice.yaml: two sets have the name 'a'"
    ),
    Case.train("evaluation: no such grader", "--eval-config", "grader.yaml", names="set 'a': rm_type"),
    Case.train("evaluation: no such reward", "--eval-config", "reward.yaml", names="set 'a': custom_rm_path"),
    Case.train(
        "evaluation: no such generate", "--eval-config", "made.yaml", names="set 'a': custom_generate_function_path"
    ),
    Case.train("evaluation: no such field", "--eval-config", "field.yaml", names="set 'a'"),
    Case.train("evaluation: a path without a name", "--eval-prompt-data", "data/eval.jsonl", names="eval_prompt_data"),
    Case.train("dumps: not there", "--load-debug-rollout-data", "dumps/{rollout_id}.pt"),
]
ARCHIVES = [
    Case.train("archive: no such run", "--archive-prompts", "nosuch"),
    Case.train("archive: no such folder", "--archive-prompts", "nowhere/small", names="nowhere/small"),
    Case.train("archive: an empty store", "--archive-prompts", "file:///nowhere/small"),
    Case.train("archive: a query that is no SQL", *ARCHIVE, "--archive-where", "selec", names="--archive-prompts"),
    Case.train("archive: no such column", *ARCHIVE, "--archive-where", "select nosuch from groups", names="nosuch"),
    Case.train("archive: nothing chosen", *ARCHIVE, "--archive-min-pass-rate", "0.9", names="pass rate"),
]
PLACES = [
    Case.train("archive URL: an unknown store", "--archive-url", "nostore://bucket"),
    Case.train("archive URL: a file is in the way", "--archive-url", "a-file/archive"),
    Case.train("archive URL: another run of that name", "--archive-url", "archives"),
    Case.train("blob URL: a file is in the way", "--blob-url", "a-file"),
    Case.train("checkpoints: a file is in the way", "--save", "a-file"),
    Case.train("checkpoints: nothing to begin with", "--load", "nowhere"),
    Case.train("checkpoints: an empty folder", "--load", "empty"),
    Case.train("runs: a file is in the way", "--runs-dir", "a-file"),
    Case.train("runs: no name for a run", "--run", "a.b", names="run is 'a.b'"),
    Case.train("model: no such folder", "--hf-checkpoint", "nowhere", names="hf_checkpoint"),
    Case.train(
        "model: stages",
        *("--pipeline-model-parallel-size", "3", "--actor-num-gpus-per-node", "3"),
        names="pipeline-model-parallel-size",
    ),
    Case.train(
        "model: heads over ranks",
        *("--tensor-model-parallel-size", "8", "--actor-num-gpus-per-node", "8"),
        names="tensor-model-parallel-size 8",
    ),
    Case.train("model: a path of no step", "--save-hf", "x/{step}", "--save-interval", "1", names="save_hf"),
    Case.train("model: a file above", "--save-hf", "good.toml/{rollout_id}", "--save-interval", "1", names="--save-hf"),
    Case.train("model: an empty folder", "--hf-checkpoint", "empty", names="hf_checkpoint"),
    Case.train("model: no weights", "--hf-checkpoint", "no-weights"),
    Case.train("model: no tokenizer", "--hf-checkpoint", "no-tokenizer"),
    Case.train("model: another family", "--hf-checkpoint", "no-family"),
    Case.train("teacher: no such folder", "--use-opd", "--opd-teacher-load", "nowhere", names="opd_teacher_load"),
    Case.train("teacher: no weights", "--use-opd", "--opd-teacher-load", "no-weights", names="--opd-teacher-load"),
    Case.train("teacher: other tokens", "--use-opd", "--opd-teacher-load", "other-tokens", names="--opd-teacher-load"),
    Case.train("model: other layers", "--num-layers", "36"),
    Case.train("sampling: no token of the model's", "--rollout-stop-token-ids", "99999"),
    Case.train("sampling: many stop strings", "--rollout-stop", *(f"s{n}" for n in range(33))),
    Case.train("port: nobody at NATS", "--nats-url", f"nats://{DEAD}"),
    Case.train("port: no port of NATS", "--nats-url", "nats://127.0.0.1:99999"),
    Case.train("port: nobody at Ray", "--ray-address", DEAD),
]
RECORDED, RUNS = f"archives/{RUN}", ("--run", "z", "--runs-dir", "runs")
COMMANDS = [
    Case.train("flags: unknown", "--no-such-flag", "1"),
    Case.train("flags: no number", "--num-rollout", "two"),
    Case.train("flags: below zero", "--num-rollout", "-1", names="num_rollout"),
    Case("settings: no such file", ("train", "--config", "nowhere.toml"), "nowhere.toml"),
    Case("settings: no TOML", ("train", "--config", "bad.toml"), "bad.toml"),
    Case("settings: an unknown name", ("train", "--config", "unknown.toml"), "nmae"),
    Case("tinker: beyond this machine", (*TRAIN, "--tinker", "0.0.0.0:8600"), "0.0.0.0:8600"),
    Case("tinker: no port", (*TRAIN, "--tinker", "localhost"), "--tinker"),
    Case("demo: no such function", (*DEMO, "--custom-rm-path", "own.py:nofunc"), "nofunc"),
    Case("demo: no such model", (*DEMO, "--model", "smolm"), "smolm"),
    Case("resume: no such run", ("resume", "nobody", *RUNS[2:]), "nobody"),
    Case("branch: no such run", ("branch", "nobody", "--from", "1", *RUNS), "nobody"),
    Case("branch: no such version", ("branch", RECORDED, "--from", "9", *RUNS), "9"),
    Case("branch: no such reward", ("branch", RECORDED, "--from", "1", *RUNS, "--custom-rm-path", "own.py:no"), "no'"),
    Case("learn: no such filter", ("learn", RECORDED, *RUNS, "--dynamic-sampling-filter-path", "own.py:f"), "own.py"),
    Case("learn: no such layers", ("learn", RECORDED, *RUNS, "--num-layers", "36"), "num-layers"),
    Case("learn: no such run", ("learn", "nobody", *RUNS), "nobody"),
    Case("learn: no such version", ("learn", RECORDED, "--from", "9", *RUNS), "9"),
    Case("learn: no such changes", ("learn", RECORDED, "--changes", "nowhere", *RUNS), "nowhere"),
    Case("retrain: no such run", ("retrain", "nobody", *RUNS[2:]), "nobody"),
    Case("replay-rollout: no such sample", ("replay-rollout", RECORDED, "nosample"), "nosample"),
    Case("restore: no such archive", ("restore", "nobody", "empty", *RUNS[2:]), "empty"),
]
OWN_CODE = [Case(name, (*TRAIN, *flags), says, (2,)) for name, flags, says in own_code.wrong_code()]
"""Every mistake at every plug point."""
A_FEW = [Case(name, (*TRAIN, *flags), says, (2,)) for name, flags, says in own_code.wrong_code(most=2)]
"""Of those each mistake and each plug point several times."""
OTHERS = [*REWARDS, *PLUG_POINTS, *DATA, *ARCHIVES, *PLACES, *COMMANDS]
CASES = [*A_FEW, *OTHERS]
