"""Every algorithm on the demo's task: what it learns, and whether its run can be proved afterwards.

    python -m benchmarks.algorithms [--only NAME ...] [--steps N] [--runs-dir DIR] [--json FILE]

One after the other, by the commands that a user types: `demo` (for SFT `train`) with the flags of `RECIPES`, then
`retrain`, `audit` and `replay` of that run. Exits 1 where a run is not clean. All have the same base checkpoint,
questions and evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.figure import Figure
from schemas.errors import TrainerError
from slime_events.app.demo.digits4 import take, write_rows
from slime_events.app.demo.settings import BASE
from slime_events.app.demo.words import GAIN
from tools.demo_base import worked_answer

STEPS = 30
DEADLINE_S = 600.0
TWICE = "--num-steps-per-rollout 2"
"""Of two updates a rollout the second is off policy: there the ratio is not 1, and clips act."""
BEHIND = f"{TWICE} --max-staleness 2"
"""And rollouts are of older weights, so that there is something to correct between engine and trainer."""
MIS = "--custom-tis-function-path examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
ICEPOP = "--custom-tis-function-path slime.backends.megatron_utils.loss.icepop_function"
SFT, TEACHING = "sft", "grpo"
TEACHER = "TEACHER"
"""In flags: the last weights of the run TEACHING."""
RECIPES: Mapping[str, str] = {
    "grpo": TWICE,
    "dr_grpo": f"{TWICE} --disable-grpo-std-normalization",
    "gspo": f"{TWICE} --advantage-estimator gspo --eps-clip 3e-4 --eps-clip-high 4e-4",
    "cispo": f"{TWICE} --advantage-estimator cispo --eps-clip 1 --eps-clip-high 4",
    "reinforce_plus_plus": f"{TWICE} --advantage-estimator reinforce_plus_plus --normalize-advantages --kl-coef 0.001",
    "reinforce_plus_plus_baseline": f"{TWICE} --advantage-estimator reinforce_plus_plus_baseline "
    "--normalize-advantages --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type k2",
    "ppo": f"{TWICE} --advantage-estimator ppo --normalize-advantages --critic-lr 1e-3 --num-critic-only-steps 5",
    "opd": f"{TWICE} --n-samples-per-prompt 1 --rollout-batch-size 128 --use-opd --opd-teacher-load {TEACHER}",
    "tis": f"{BEHIND} --use-tis",
    "icepop": f"{BEHIND} --use-tis {ICEPOP} --tis-clip-low 0.5",
    "mis": f"{BEHIND} --use-tis {MIS} --tis-level sequence --tis-mode clip --use-rs --rs-veto-threshold 1e-4",
    "opsm": f"{BEHIND} --use-opsm",
    SFT: "--supervised --loss-type sft_loss --disable-compute-advantages-and-returns --rollout-batch-size 128 "
    "--lr 1e-3",
}
"""Flags behind those that all runs have."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one algorithm came to. evals: held-out accuracy, greedy, by weight version. rewards: mean of each step, of
    sampled answers; empty where nothing is graded. seconds: of the run. weights: digest of its last version. problems:
    a sentence for each command that did not find the run clean.
    """

    algorithm: str
    flags: str
    steps: int
    evals: dict[int, float]
    rewards: tuple[float, ...]
    seconds: float
    weights: str
    retrained: int
    audited: int
    replayed: int
    problems: tuple[str, ...] = ()

    @property
    def first(self) -> float:
        """Accuracy of the base checkpoint."""
        return self.evals[min(self.evals)]

    @property
    def last(self) -> float:
        """Accuracy of the last weights."""
        return self.evals[max(self.evals)]

    @property
    def figure(self) -> Figure:
        """The last accuracy, against the first and what may be chance; without a value where the run is not clean."""
        proof = f"{self.retrained} steps re-trained equal, {self.audited} checks clean, {self.replayed} decisions same"
        note = "; ".join(self.problems) or f"{self.first:.3f} before, {self.steps} steps, {self.seconds:.0f} s; {proof}"
        return Figure(
            name=f"{self.algorithm}: held-out accuracy",
            value=None if self.problems else self.last,
            unit="of 1",
            target=self.first + GAIN["digits4"],
            note=note,
        )


def measure(steps: int = STEPS, only: Sequence[str] | None = None) -> list[Figure]:
    """A figure for each algorithm."""
    with tempfile.TemporaryDirectory() as folder:
        return [run_algorithm(name, Path(folder), steps).figure for name in only or RECIPES]


def run_algorithm(name: str, runs: Path, steps: int) -> Outcome:
    """Train, then prove. runs: the folder of all runs; an earlier run of that name is replaced."""
    begin, flags = _supervised if name == SFT else _demo, RECIPES[name]
    if TEACHER in flags:
        if not (runs / TEACHING / "summary.json").exists():
            _demo(TEACHING, RECIPES[TEACHING], runs, steps)
        flags = flags.replace(TEACHER, str(weights_of(runs / TEACHING)))
    summary, evals = begin(name, flags, runs, steps)
    problems: list[str] = []
    retrained, audited, replayed = (
        _proved(command, name, runs, problems) for command in ("retrain", "audit", "replay")
    )
    return Outcome(
        algorithm=name,
        flags=RECIPES[name],
        steps=summary["steps"],
        evals=evals,
        rewards=() if name == SFT else tuple(summary["rewards"]),
        seconds=summary["seconds"],
        weights=summary["weights_digest"],
        retrained=len(retrained.get("steps", ())),
        audited=len(audited.get("checks", ())),
        replayed=sum(replayed.get("decisions", {}).values()),
        problems=tuple(problems),
    )


def _demo(name: str, flags: str, runs: Path, steps: int) -> tuple[dict[str, Any], dict[int, float]]:
    """(summary, accuracy by weight version)."""
    _command("demo", "--run", name, "--runs-dir", str(runs), "--steps", str(steps), "--force", *flags.split())
    summary = _summary(runs / name)
    return summary, {done["version"]: done["mean"] for done in summary["evals"]}


def _supervised(name: str, flags: str, runs: Path, steps: int) -> tuple[dict[str, Any], dict[int, float]]:
    """The demo's training questions with worked answers. Runs of engines alone evaluate the first and last weights."""
    evals = {0: _accuracy(BASE, runs)}
    rows = (
        {"messages": [{"role": "user", "content": one.text}, {"role": "assistant", "content": worked_answer(one)}]}
        for one in take(4096, 0, held_out=False)
    )
    chats, _ = write_rows(runs / "chats", rows, ())
    given = supervised_flags(chats, steps)
    shutil.rmtree(runs / name, ignore_errors=True)
    _command("train", "--run", name, "--runs-dir", str(runs), *given, *flags.split())
    return _summary(runs / name), evals | {steps: _accuracy(weights_of(runs / name), runs)}


def supervised_flags(chats: Path, steps: int) -> list[str]:
    """What `demo` sets for the others."""
    words = ["--hf-checkpoint", str(BASE), "--prompt-data", str(chats), "--input-key", "messages"]
    return [*words, "--num-rollout", str(steps), "--use-dynamic-batch-size", "--max-tokens-per-gpu", "8192"]


def _accuracy(checkpoint: Path, runs: Path) -> float:
    """Of a checkpoint on the demo's held-out questions."""
    engines = "--debug-rollout-only --steps 1 --rollout-batch-size 1 --force"
    _command("demo", "--run", "eval", "--runs-dir", str(runs), "--hf-checkpoint", str(checkpoint), *engines.split())
    accuracy: float = _summary(runs / "eval")["eval_first"]
    return accuracy


def weights_of(run: Path) -> Path:
    """The folder of a run's last weight version."""
    return max((run / "weights").glob("v*"))


def _summary(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def _proved(command: str, name: str, runs: Path, problems: list[str]) -> dict[str, Any]:
    """The report of a command that looks at the run; where it finds something, a sentence more in `problems`."""
    done = _process(command, name, "--runs-dir", str(runs), "--json")
    if done.returncode:
        problems.append(f"{command} ended with {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
    return json.loads(done.stdout) if done.stdout.startswith("{") else {}


def _command(*words: str) -> None:
    """Raises TrainerError where the command fails."""
    done = _process(*words)
    if done.returncode:
        raise TrainerError(f"slime-events {' '.join(words)} ended with {done.returncode}: {done.stderr[-1500:]}")


def _process(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slime_events.app.cli.main", *words]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=one_thread)


def markdown(outcomes: Sequence[Outcome]) -> str:
    """For docs/algorithms.md."""
    head = ("algorithm", "held-out", "reward", "steps", "seconds", "retrain", "audit", "replay", "flags")
    lines = [head, ("---",) * len(head), *map(_cells, outcomes)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(one: Outcome) -> tuple[str, ...]:
    ends = [sum(part) / len(part) for part in (one.rewards[:5], one.rewards[-5:]) if part]
    reward = " -> ".join(f"{mean:.2f}" for mean in ends) or "-"
    proofs = ("NO", "NO", "NO")
    if not one.problems:
        proofs = (f"{one.retrained} equal", f"{one.audited} clean", f"{one.replayed:,} same")
    figures = (f"{one.first:.3f} -> {one.last:.3f}", reward, str(one.steps), f"{one.seconds:.0f}")
    return (one.algorithm, *figures, *proofs, f"`{one.flags}`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run them and print the table; 1 where a run is not clean."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.algorithms", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=RECIPES, metavar="NAME", help=f"some of: {', '.join(RECIPES)}")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each run [{STEPS}]")
    parser.add_argument("--runs-dir", type=Path, help="keep the runs there [they are removed]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of each there, a line each")
    options = parser.parse_args(argv)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or RECIPES:
            print(f"{name} ...", file=sys.stderr, flush=True)
            outcomes.append(run_algorithm(name, options.runs_dir or Path(folder), options.steps))
            if options.json:
                options.json.write_bytes(b"\n".join(map(msgspec.json.encode, outcomes)) + b"\n")
    print(markdown(outcomes))
    for problem in (problem for one in outcomes for problem in one.problems):
        print(problem, file=sys.stderr)
    return int(any(one.problems for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
