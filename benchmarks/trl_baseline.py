"""Measure TRL's GRPOTrainer with the demo's batch and settings, in one process, as the baseline of a step's seconds.

    make install-benchmarks
    python -m benchmarks.trl_baseline [--model demo|smollm2-135m] [--steps 60] [--threads 1] [--checkpoint FOLDER]

Prints one JSON object. Generation uses transformers (TRL's default without vLLM), in float32 on the CPU. It stores
nothing: no log, no weight versions, no second process. The median excludes the first two steps. Answers and so steps
get longer while the demo learns: compare runs with the same number of steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset
    from trl import GRPOConfig

    from slime_events.core.config.settings import TrainSettings

SKIPPED = 2  # steps for warm-up


def reward(completions: list[list[dict[str, str]]], label: list[str], **_: object) -> list[float]:
    """Return 1 for each answer whose last word is the label, else 0. Both demos' questions have one-word answers."""
    texts = (turns[0]["content"] for turns in completions)
    answers = (text.rpartition("</think>")[2].split() for text in texts)
    return [float(bool(words) and words[-1] == right) for words, right in zip(answers, label, strict=True)]


def prepared(model: str, folder: Path, checkpoint: Path | None) -> TrainSettings:
    """Write the files of a demo to `folder` (SmolLM2 itself to `checkpoint`), and return its settings."""
    from slime_events.app.demo.settings import prepare_demo, prepare_smollm2

    if model == "demo":
        return prepare_demo(folder)
    return prepare_smollm2(folder, checkpoint or folder / "smollm2-135m")


def trl_config(settings: TrainSettings, steps: int, out: Path) -> GRPOConfig:
    """Return our settings in TRL's names: one optimizer step on the whole batch, no KL, no reference model."""
    from trl import GRPOConfig

    rollout, trainer, algorithm = settings.rollout, settings.trainer, settings.algorithm
    return GRPOConfig(
        output_dir=str(out),
        use_cpu=True,
        bf16=False,
        max_steps=steps,
        per_device_train_batch_size=rollout.rollout_batch_size * rollout.n_samples_per_prompt,
        num_generations=rollout.n_samples_per_prompt,
        max_completion_length=rollout.rollout_max_response_len,
        temperature=rollout.rollout_temperature,
        learning_rate=trainer.lr,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=trainer.lr_warmup_iters,
        adam_beta1=trainer.adam_beta1,
        adam_beta2=trainer.adam_beta2,
        weight_decay=trainer.weight_decay,
        max_grad_norm=trainer.clip_grad,
        beta=0.0,
        epsilon=algorithm.eps_clip,
        epsilon_high=algorithm.eps_clip_high,
        loss_type="grpo",
        scale_rewards="group",
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=trainer.seed,
    )


def questions(settings: TrainSettings) -> Dataset:
    """Return the demo's training file in TRL's format: `prompt` (messages) and `label`."""
    from datasets import Dataset

    with open(settings.data.prompt_data or "", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return Dataset.from_list([{"prompt": row["messages"], "label": row["label"]} for row in rows])


def timed_steps(settings: TrainSettings, steps: int, out: Path) -> tuple[list[float], list[float]]:
    """Train, and return the seconds and the mean reward of every step."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    seconds: list[float] = []
    rewards: list[float] = []

    class Stopwatch(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: object, **__: object) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: object, **__: object) -> None:
            seconds.append(time.perf_counter() - self.began)

    def graded(prompts: object, completions: list[list[dict[str, str]]], label: list[str], **_: object) -> list[float]:
        values = reward(completions, label)
        rewards.append(sum(values) / len(values))
        return values

    checkpoint = settings.trainer.hf_checkpoint
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(checkpoint, padding_side="left"),
        reward_funcs=graded,
        args=trl_config(settings, steps, out),
        train_dataset=questions(settings),
        callbacks=[Stopwatch()],
    ).train()
    return seconds, rewards


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="seconds a step of TRL's GRPOTrainer on a demo")
    parser.add_argument("--model", choices=("demo", "smollm2-135m"), default="demo")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, help="folder for the converted SmolLM2 [a temporary folder]")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    load_before = os.getloadavg()[0]
    # Standard output must contain only our JSON object.
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = prepared(options.model, folder, options.checkpoint)
        seconds, rewards = timed_steps(settings, options.steps, folder / "out")
    kept = seconds[SKIPPED:] or seconds
    result = {
        "benchmark": "trl_baseline",
        "model": options.model,
        "trl": version("trl"),
        "threads": options.threads,
        "steps": len(seconds),
        "seconds_per_step": round(statistics.median(kept), 3),
        "seconds_each": [round(value, 3) for value in seconds],
        "reward_each": [round(value, 3) for value in rewards],
        "peak_resident_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2, 2),
        "load": [round(load_before, 2), round(os.getloadavg()[0], 2)],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
