"""`RunRecord`: a run's own events, read from its log, and the settings that a resumed run may change."""

from dataclasses import dataclass
from typing import Annotated, Any

from schemas.doc import doc
from schemas.errors import InvalidValue, RunNotFound
from schemas.runs import FinishReason, PromptFile, RunFinished, RunResumed, RunStarted
from schemas.steps import StepCommitted
from schemas.subjects import about, of_type
from slime_events.core.config.gateway import RunGatewaySettings
from slime_events.core.config.metrics import MetricsSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_settings import differences, flag_of, settings_in_force
from storage.log import Readable, Recorded

Changes = dict[str, dict[str, Any]]
"""New values by component and field."""

MAY_CHANGE = {
    "run": (
        *("nats_url", "nats_creds", "nats_tls_ca", "nats_tls_cert", "nats_tls_key", "archive_seconds"),
        *("log_keep_steps", "ray_address", "otlp_endpoint", "trace_share", "max_deaths", "file_access", "plain"),
    ),
    "rollout": ("num_rollout", "rollout_deadline", "max_attempts", "max_waiting_prompts"),
    "data": ("source_quota",),
    "reward": ("rm_timeout", "rm_workers", "rm_memory_gb", "rm_env", "outside_reward_seconds", "reward_sources"),
    "engine": ("device", "rollout_num_gpus", "colocate", "sglang_server_concurrency", "chunk_tokens", "chunk_seconds"),
    "trainer": (
        *("keep_weights", "keep_weights_every", "keep_checkpoints", "keep_checkpoints_every", "save_hf"),
        *("distributed_timeout_minutes", "hang_seconds", "exact", "max_retrained_steps", "optimizer_digest"),
    ),
    "metrics": MetricsSettings.__struct_fields__,
    "gateway": RunGatewaySettings.__struct_fields__,
    "agents": ("agent_command", "agent_env", "agent_concurrency", "agent_timeout"),
}
"""Settings that do not affect what is trained: number of steps, time limits, hardware, loggers and access."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run's past incarnations."""

    started: RunStarted
    resumed: tuple[RunResumed, ...]
    last: Annotated[Recorded, doc("Newest of the run's own events, including its ends")]
    steps: Annotated[int, doc("Committed steps, including those of a branch's parent")]

    @property
    def first(self) -> int:
        """Weight version that the run begins with: 0, or the version that it branched off from."""
        return self.started.branched.version if self.started.branched else 0

    @property
    def incarnation(self) -> int:
        """Number of the next incarnation."""
        return len(self.resumed) + 1

    @property
    def has_finished(self) -> bool:
        """Whether the run ended with all its steps."""
        end = self.last.envelope.event
        return isinstance(end, RunFinished) and end.reason is FinishReason.ALL_STEPS

    def is_over(self, steps: int | None) -> bool:
        """Whether the run has finished and has at least `steps` steps."""
        return self.has_finished and steps is not None and self.steps >= steps

    @property
    def prompt_files(self) -> dict[str, PromptFile]:
        """The run's prompt files by path, as the newest incarnation read each of them."""
        events: tuple[RunStarted | RunResumed, ...] = (self.started, *self.resumed)
        return {file.path: file for event in events for file in event.prompt_files or ()}

    @property
    def settings(self) -> TrainSettings:
        """The run's current settings."""
        return settings_in_force((self.started, *self.resumed))


async def read_run_record(log: Readable) -> RunRecord:
    """Read the record from the log. Raises RunNotFound if the log does not begin with run.started."""
    events = [recorded async for recorded in log.read(1, about(log.run, "run", "run"))]
    if not events or not isinstance(started := events[0].envelope.event, RunStarted):
        raise RunNotFound(
            f"the log of run {log.run} does not begin with run.started: start the run with slime-events train"
        )
    resumed = tuple(r.envelope.event for r in events if isinstance(r.envelope.event, RunResumed))
    newest = await log.last(of_type(log.run, "step.committed"))
    committed = newest.envelope.event if newest else None
    first = started.branched.version if started.branched else 0
    steps = committed.version if isinstance(committed, StepCommitted) else first
    return RunRecord(started, resumed, events[-1], steps)


def changes(before: TrainSettings, after: TrainSettings) -> Changes:
    """Return the fields that differ, with their new values."""
    changed: Changes = {}
    for difference in differences(before, after):
        changed.setdefault(difference.component, {})[difference.field] = difference.after
    return changed


def check_changes(changed: Changes, steps: int) -> None:
    """Raise InvalidValue that names the settings which a resumed run may not change. steps: committed so far."""
    wrong = [f for component, fields in changed.items() for f in fields if f not in MAY_CHANGE.get(component, ())]
    if wrong:
        allowed = sorted(flag_of(f) for fields in MAY_CHANGE.values() for f in fields)
        raise InvalidValue(
            f"{', '.join(map(flag_of, wrong))}: a resumed run cannot change what it trains; it may change "
            f"{', '.join(allowed)}. Start another run for other changes."
        )
    target = changed.get("rollout", {}).get("num_rollout")
    if target is not None and target < steps:
        raise InvalidValue(f"--num-rollout {target} is too small: {steps} steps are committed already.")
