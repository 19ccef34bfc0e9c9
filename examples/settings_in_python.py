"""Settings built in Python: train two steps, print the settings as TOML, and train the same steps from the file.

    python examples/settings_in_python.py [FOLDER]

It takes about a minute on two CPU cores. FOLDER (default `settings-example`) gets the prompts, the file and both runs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import slime_events
from slime_events import (
    DataSettings,
    EngineSettings,
    RewardSettings,
    RolloutSettings,
    RunSettings,
    TrainerSettings,
    TrainSettings,
)


def build(folder: Path) -> TrainSettings:
    """Return settings of two small steps. The model and the prompts are the demo's; a field without value has its
    default, and each field is described in docs/settings.md.
    """
    demo = slime_events.demo_settings(folder / "prompts")
    return TrainSettings(
        run=RunSettings(run="sums", runs_dir=str(folder / "runs")),
        data=DataSettings(
            prompt_data=demo.data.prompt_data, input_key="messages", label_key="label", apply_chat_template=True
        ),
        rollout=RolloutSettings(
            num_rollout=2, rollout_batch_size=8, n_samples_per_prompt=4, rollout_max_response_len=40
        ),
        reward=RewardSettings(rm_type="exact"),
        engine=EngineSettings(hf_checkpoint=demo.engine.hf_checkpoint),
        trainer=TrainerSettings(lr=1e-4, global_batch_size=32),
    )


def digests(folder: Path) -> list[str]:
    """Return the digest of the weights after each step of a run."""
    with slime_events.open_run(folder) as run:
        return [digest for (digest,) in run.sql("SELECT weights_digest FROM steps ORDER BY step").rows()]


def main(folder: Path) -> None:
    """Train twice: once with settings of this program, once with the file that they were printed to."""
    settings = build(folder.absolute())
    with slime_events.start_run(settings) as run:
        run.wait()
    file, again = folder / "sums.toml", folder / "again"
    file.write_text(slime_events.settings_toml(settings))
    words = ("slime-events", "train", "--config", str(file), "--runs-dir", str(again), "--plain")
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    for step, pair in enumerate(zip(digests(run.folder), digests(again / "sums"), strict=True)):
        print(f"step {step}: {pair[0][:12]} from Python, {pair[1][:12]} from {file.name}")
        assert pair[0] == pair[1]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "settings-example"))
