"""Measure every algorithm on the demo's task: its held-out accuracy, and whether its run can be verified.

    python -m benchmarks.algorithms [--only NAME ...] [--steps N] [--runs-dir DIR] [--json FILE]

For each algorithm it runs a user's commands: `demo` (for SFT `train`) with the flags of `RECIPES`, then `retrain`,
`audit` and `replay` of that run. It exits with 1 if a run is not clean. All have the same base checkpoint, questions
and evaluation.
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
from typing import Annotated, Any

import msgspec

from benchmarks.figure import Figure
from schemas.doc import doc
from schemas.errors import TrainerError
from slime_events.app.demo.digits4 import take, write_rows
from slime_events.app.demo.settings import BASE
from slime_events.app.demo.words import GAIN
from tools.demo_base import worked_answer

STEPS = 30
DEADLINE_S = 600.0
TWICE = "--num-steps-per-rollout 2"
"""The second of two updates per rollout is off policy: its ratio is not 1, so clipping has an effect."""
BEHIND = f"{TWICE} --max-staleness 2"
"""Rollouts also have older weights, so that corrections between engine and trainer have an effect."""
MIS = "--custom-tis-function-path examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
ICEPOP = "--custom-tis-function-path slime.backends.megatron_utils.loss.icepop_function"
SFT, TEACHING = "sft", "grpo"
TEACHER = "TEACHER"
"""Placeholder in flags for the last weights of the run TEACHING."""
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
"""Flags added to those of all runs."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Results of an algorithm."""

    algorithm: str
    flags: str
    steps: int
    evals: Annotated[dict[int, float], doc("Greedy held-out accuracy by weight version")]
    rewards: Annotated[tuple[float, ...], doc("Mean reward of sampled answers by step; empty if nothing is graded")]
    seconds: Annotated[float, doc("Duration of the run")]
    weights: Annotated[str, doc("Digest of the last weight version")]
    retrained: Annotated[int, doc("Steps trained again")]
    audited: Annotated[int, doc("Audit checks")]
    replayed: Annotated[int, doc("Decisions made again")]
    problems: Annotated[tuple[str, ...], doc("A sentence for each command that did not find the run clean")] = ()

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
        """The last accuracy, with the first plus a margin for chance as target; no value if the run is not clean."""
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
    """Return a figure for each algorithm."""
    with tempfile.TemporaryDirectory() as folder:
        return [run_algorithm(name, Path(folder), steps).figure for name in only or RECIPES]


def run_algorithm(name: str, runs: Path, steps: int) -> Outcome:
    """Train, then verify. runs: folder of all runs; an earlier run of this name is replaced."""
    begin, flags = _supervised if name == SFT else _demo, RECIPES[name]
    if TEACHER in flags:
        if not (runs / TEACHING / "summary.json").exists():
            _demo(TEACHING, RECIPES[TEACHING], runs, steps)
        flags = flags.replace(TEACHER, str(weights_of(runs / TEACHING)))
    summary, evals = begin(name, flags, runs, steps)
    problems: list[str] = []
    retrained, audited, replayed = (
        _verified(command, name, runs, problems) for command in ("retrain", "audit", "replay")
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
    """Run the demo; return its summary and the accuracy by weight version."""
    _command("demo", "--run", name, "--runs-dir", str(runs), "--steps", str(steps), "--force", *flags.split())
    summary = _summary(runs / name)
    return summary, {done["version"]: done["mean"] for done in summary["evals"]}


def _supervised(name: str, flags: str, runs: Path, steps: int) -> tuple[dict[str, Any], dict[int, float]]:
    """Train on the demo's questions with worked answers; engine-only runs evaluate the first and last weights."""
    evals = {0: _accuracy(BASE, runs)}
    rows = (
        {"messages": [{"role": "user", "content": item.text}, {"role": "assistant", "content": worked_answer(item)}]}
        for item in take(4096, 0, held_out=False)
    )
    chats, _ = write_rows(runs / "chats", rows, ())
    base_flags = supervised_flags(chats, steps)
    shutil.rmtree(runs / name, ignore_errors=True)
    _command("train", "--run", name, "--runs-dir", str(runs), *base_flags, *flags.split())
    return _summary(runs / name), evals | {steps: _accuracy(weights_of(runs / name), runs)}


def supervised_flags(chats: Path, steps: int) -> list[str]:
    """Return the flags that correspond to the settings of `demo`."""
    words = ["--hf-checkpoint", str(BASE), "--prompt-data", str(chats), "--input-key", "messages"]
    return [*words, "--num-rollout", str(steps), "--use-dynamic-batch-size", "--max-tokens-per-gpu", "8192"]


def _accuracy(checkpoint: Path, runs: Path) -> float:
    """Return the accuracy of a checkpoint on the demo's held-out questions."""
    engines = "--debug-rollout-only --steps 1 --rollout-batch-size 1 --force"
    _command("demo", "--run", "eval", "--runs-dir", str(runs), "--hf-checkpoint", str(checkpoint), *engines.split())
    accuracy: float = _summary(runs / "eval")["eval_first"]
    return accuracy


def weights_of(run: Path) -> Path:
    """Return the folder of a run's last weight version."""
    return max((run / "weights").glob("v*"))


def _summary(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def _verified(command: str, name: str, runs: Path, problems: list[str]) -> dict[str, Any]:
    """Return the report of a command that checks the run; add a sentence to `problems` if it is not clean."""
    done = _process(command, name, "--runs-dir", str(runs), "--json")
    if done.returncode:
        problems.append(f"{command} ended with {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
    return json.loads(done.stdout) if done.stdout.startswith("{") else {}


def _command(*words: str) -> None:
    """Run a command. Raises TrainerError if it fails."""
    done = _process(*words)
    if done.returncode:
        raise TrainerError(f"slime-events {' '.join(words)} ended with {done.returncode}: {done.stderr[-1500:]}")


def _process(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slime_events.app.cli.main", *words]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=one_thread)


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return a table for docs/algorithms.md."""
    head = ("algorithm", "held-out", "reward", "steps", "seconds", "retrain", "audit", "replay", "flags")
    lines = [head, ("---",) * len(head), *map(_cells, outcomes)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(result: Outcome) -> tuple[str, ...]:
    ends = [sum(part) / len(part) for part in (result.rewards[:5], result.rewards[-5:]) if part]
    reward = " -> ".join(f"{mean:.2f}" for mean in ends) or "-"
    proofs = ("NO", "NO", "NO")
    if not result.problems:
        proofs = (f"{result.retrained} equal", f"{result.audited} clean", f"{result.replayed:,} same")
    figures = (f"{result.first:.3f} -> {result.last:.3f}", reward, str(result.steps), f"{result.seconds:.0f}")
    return (result.algorithm, *figures, *proofs, f"`{result.flags}`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the algorithms and print a table; return 1 if a run is not clean."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.algorithms", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=RECIPES, metavar="NAME", help=f"some of: {', '.join(RECIPES)}")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of each run [{STEPS}]")
    parser.add_argument("--runs-dir", type=Path, help="keep the runs in this folder [they are removed]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file, a line each")
    options = parser.parse_args(argv)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or RECIPES:
            print(f"{name} ...", file=sys.stderr, flush=True)
            outcomes.append(run_algorithm(name, options.runs_dir or Path(folder), options.steps))
            if options.json:
                options.json.write_bytes(b"\n".join(map(msgspec.json.encode, outcomes)) + b"\n")
    print(markdown(outcomes))
    for problem in (problem for outcome in outcomes for problem in outcome.problems):
        print(problem, file=sys.stderr)
    return int(any(outcome.problems for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
