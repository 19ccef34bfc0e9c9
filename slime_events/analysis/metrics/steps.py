"""Metrics of a committed step: train/ and perf/, under slime's names."""

from schemas.steps import StepCommitted
from slime_events.analysis.metrics.rollouts import Values

_SECONDS = "seconds_"
_RENAMED = {
    "entropy": "entropy_loss",
    "lr": "lr-pg_0",
    "value_loss": "critic-value_loss",
    "value_clipfrac": "critic-value_clipfrac",
    "critic_grad_norm": "critic-grad_norm",
    "critic_lr": "critic-lr-pg_0",
    "explained_variance": "critic-explained_variance",
}
"""The trainer's names that differ from slime's."""
_OF_ROLLOUTS = ("values", "returns", "advantages")
"""Metrics of a critic over a step's rollouts, which slime has under rollout/."""
_UPDATE = ("forward_backward", "gradients", "optimizer")


def train_metrics(event: StepCommitted) -> Values:
    """Return train/ without its prefix: means over the step's optimizer steps."""
    metrics = event.metrics
    left_out = (_SECONDS, *_OF_ROLLOUTS)
    values = {_RENAMED.get(name, name): value for name, value in metrics.items() if not name.startswith(left_out)}
    if (steps := metrics.get("optimizer_steps")) and "samples" in metrics:
        values["global_batch_size"] = metrics["samples"] / steps
    return values


def critic_metrics(event: StepCommitted) -> Values:
    """Return rollout/ without its prefix, for a run with a critic: means over the trained tokens of the step."""
    return {name: event.metrics[name] for name in _OF_ROLLOUTS if name in event.metrics}


def trainer_metrics(event: StepCommitted, waited: float | None) -> Values:
    """Return perf/ without its prefix, in seconds. waited: from the previous step to this one; None if unknown."""
    parts = event.seconds
    seconds = {name.removeprefix(_SECONDS): value for name, value in event.metrics.items() if name.startswith(_SECONDS)}
    trained = parts.get("batch", 0.0) + parts.get("train", 0.0)
    update = sum(seconds.get(part, 0.0) for part in _UPDATE)
    if not update and "critic" not in seconds:  # the critic may be all that was trained
        update = parts.get("train", 0.0)
    values = {"train_time": trained, "actor_train_time": update}
    named = {
        "data_preprocess": parts.get("batch"),
        "log_probs": seconds.get("scoring"),
        "update_weights": parts.get("weights"),
        "critic_train": seconds.get("critic"),
    }
    values |= {f"{name}_time": value for name, value in named.items() if value is not None}
    if update > 0:
        values["actor_train_tok_per_s"] = event.tokens / update
    if waited is not None and waited + trained > 0:
        values |= {"train_wait_time": waited, "step_time": waited + trained}
        values["wait_time_ratio"] = waited / (waited + trained)
    return values
