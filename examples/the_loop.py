"""The whole loop in one script: start a small run, follow its events, query it by SQL, show one sample.

    python examples/the_loop.py [FOLDER]

It takes about a minute on two CPU cores. FOLDER (default `loop-example`) gets the prompts and the run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import slime_events
from slime_events import RunProcess, TrainSettings

HERE = Path(__file__).parent
STEPS = 3


def small_settings(folder: Path) -> TrainSettings:
    """Return settings with the demo's model and prompts, the reward and filter of this folder, and a few small steps.

    The words are flags of `slime-events train`. Your own run takes all settings from such words, or from a TOML file:
    `slime_events.parse_settings("--config", "run.toml")`.
    """
    return slime_events.demo_settings(
        folder / "prompts",
        *("--run", "loop", "--runs-dir", str(folder / "runs"), "--num-rollout", str(STEPS)),
        *("--rollout-batch-size", "8", "--n-samples-per-prompt", "4", "--over-sampling-batch-size", "12"),
        *("--eval-interval", str(STEPS)),
        *("--custom-rm-path", f"{HERE / 'rewards.py'}:reward_func"),
        *("--dynamic-sampling-filter-path", f"{HERE / 'filters.py'}:not_too_easy"),
    )


def follow(run: RunProcess) -> None:
    """Print a line for each step, evaluation and dropped group. Every fact of a run is an event."""
    for recorded in run.events("step.committed", "eval.completed", "group.rejected"):
        event = recorded.envelope.event
        match recorded.envelope.type:
            case "step.committed":
                print(f"{recorded.position:>6}  step {event.step} is committed as weight version {event.version}")
            case "eval.completed":
                print(f"{recorded.position:>6}  {event.dataset} of version {event.version}: {event.mean:.3f}")
            case "group.rejected":
                print(f"{recorded.position:>6}  {event.group} is dropped: {event.reason}")


def ask(where: Path | str) -> None:
    """Query a run. The same code works for a running run, an ended run and an archive."""
    with slime_events.open_run(where) as run:
        print(f"\nrun {run.name} is {run.status()}")
        answer = run.sql("SELECT step, reward_mean, tokens, staleness, seconds FROM steps ORDER BY step")
        print("  ".join(answer.columns))
        for row in answer.rows():
            print("  ".join(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row))
        sample, response = run.sql("SELECT sample, text FROM samples WHERE reward = 1 LIMIT 1").rows()[0]
        print(f"\na right answer ({sample}): {response}")
        print("its history:")
        for recorded in run.events(sample=sample):
            print(f"{recorded.position:>6}  {recorded.envelope.type}")


def main(folder: Path) -> None:
    """Start, follow and query. To leave the block early stops the run; `resume_run` can continue it."""
    with slime_events.start_run(small_settings(folder)) as run:
        follow(run)
        summary = run.wait()
    print(f"{summary['steps']} steps, {summary['events']:,} events, {summary['seconds']:.0f} s")
    ask(run.folder)
    ask(str(run.folder / "archive" / run.name))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "loop-example"))
