"""The settings of the two demos, and the files that they need in their folder."""

from pathlib import Path

from msgspec.structs import replace

from slime_events.app.demo import arithmetic, digits4
from slime_events.app.demo.smollm2 import converted
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.data import DataSettings
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.evaluation import EvalSettings
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.settings import RunSettings, TrainSettings
from slime_events.core.config.trainer import TrainerSettings

BASE = Path(__file__).parent / "base"
SMOLLM2 = "smollm2-135m"
SIDE_BY_SIDE = EngineSettings(colocate=True, offload_train=False, offload_rollout=False)
"""These models are small: rank and engine fit on a GPU together, and turns would only make steps longer."""
TRAINER = TrainerSettings(
    num_steps_per_rollout=1, use_dynamic_batch_size=True, adam_beta1=0.9, adam_beta2=0.99, clip_grad=1.0
)
"""Trainer settings of both demos. Their engines share the trainer's GPU, so one GPU suffices."""


def prepare_demo(folder: Path) -> TrainSettings:
    """Write the questions of `digits4` to `folder` and return the settings that train the base checkpoint on them."""
    digits4.write_data(folder)
    return demo_settings(folder)


def prepare_smollm2(folder: Path, checkpoint: Path) -> TrainSettings:
    """Write the questions of `arithmetic` to `folder` and return the settings that train SmolLM2-135M-Instruct on them.

    Converts the model into the folder `checkpoint`, unless it is there already. Raises MissingPart if the package with
    its weights is not installed, NoSpace, ConfigError.
    """
    converted(checkpoint)
    arithmetic.write_data(folder)
    return smollm2_settings(folder, checkpoint)


def demo_settings(folder: Path) -> TrainSettings:
    """Return settings for GRPO on `digits4`: 60 steps of 16 questions x 8 samples, greedy held-out evaluation."""
    base = str(BASE)
    return TrainSettings(
        run=RunSettings(run="demo"),
        data=_chat_data(folder),
        rollout=RolloutSettings(
            num_rollout=60,
            rollout_batch_size=16,
            n_samples_per_prompt=8,
            rollout_max_response_len=40,
            rollout_temperature=1.0,
        ),
        reward=RewardSettings(rm_type="exact"),
        evaluation=_held_out(folder, "digits4", every=20),
        algorithm=AlgorithmSettings(eps_clip=0.2, eps_clip_high=0.28),
        # Prompts of twenty tokens share too little: the cache would take a fifth of the engine's time.
        engine=replace(SIDE_BY_SIDE, hf_checkpoint=base, sglang={"disable_radix_cache": True}),
        trainer=replace(
            TRAINER,
            hf_checkpoint=base,
            global_batch_size=128,
            max_tokens_per_gpu=8192,
            lr=1e-4,
            lr_warmup_iters=10,
            keep_weights=0,
        ),
    )


def smollm2_settings(folder: Path, checkpoint: Path) -> TrainSettings:
    """Return settings for a few GRPO steps of 8 sums x 8 samples.

    At temperature 1 this model rambles and rarely earns a reward.
    """
    return TrainSettings(
        run=RunSettings(run=SMOLLM2),
        data=_chat_data(folder),
        rollout=RolloutSettings(
            num_rollout=6,
            rollout_batch_size=8,
            n_samples_per_prompt=8,
            rollout_max_response_len=10,
            rollout_temperature=0.7,
        ),
        reward=RewardSettings(rm_type="reasoning_gym"),
        evaluation=_held_out(folder, "arithmetic", every=3),
        algorithm=AlgorithmSettings(eps_clip=0.2, eps_clip_high=0.28),
        engine=replace(SIDE_BY_SIDE, hf_checkpoint=str(checkpoint)),
        trainer=replace(
            TRAINER,
            hf_checkpoint=str(checkpoint),
            global_batch_size=64,
            max_tokens_per_gpu=1024,  # the logits of 1,024 tokens over 49,152 words are 0.2 GB
            lr=1e-5,
        ),
    )


def _chat_data(folder: Path) -> DataSettings:
    return DataSettings(
        prompt_data=str(folder / digits4.TRAIN_FILE),
        input_key="messages",
        label_key="label",
        apply_chat_template=True,
    )


def _held_out(folder: Path, name: str, every: int) -> EvalSettings:
    return EvalSettings(
        eval_interval=every,
        eval_prompt_data=[name, str(folder / digits4.EVAL_FILE)],
        eval_temperature=0.0,
    )
