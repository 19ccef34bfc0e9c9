"""`Progress`: step lines and figures of a run, live and for its summary. A fold of the log."""

import statistics
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.evals import EvalCompleted
from schemas.event import Event
from schemas.rollouts import RolloutCompleted, RolloutProgressed
from schemas.runs import RunFailed, RunResumed, RunStarted
from schemas.steps import StepClaimed, StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished
from schemas.workers import WorkerJoined
from slime_events.core.run.run_settings import settings_in_force
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.plan import Plan, make_plan
from storage.log import Recorded

NANO = 1e-9
WINDOW = 5
"""Steps at either end that a summary's means are of; of a run of fewer than twice as many, one step."""
EVAL_FIELDS = ("dataset", "version", "mean", "samples", "failed", "oldest_version", "newest_version")


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """One committed step. reward: mean of its raw rewards. seconds: since the step before, without those in which the
    run was not on or still started; idle: the trainer's share of them without work. staleness: versions that its oldest
    sample was behind. tokens_per_s: response tokens.
    """

    step: int
    version: int
    reward: float
    accepted_share: float
    mean_length: float
    tokens_per_s: float
    staleness: int
    seconds: float
    idle: float
    metrics: dict[str, float]


AGREES = "logprob_agreement_max"
AGREEMENT = 1.0
"""Log-prob difference of a token on equal weights that no rounding explains: 1e-5 in float32, some 0.1 in bfloat16."""


def disagreement(line: StepLine) -> str | None:
    """A warning where the log-probs of engine and trainer differ by more than rounding explains."""
    difference = line.metrics.get(AGREES, 0.0)
    if difference <= AGREEMENT:
        return None
    return (
        f"warning: step {line.step}: engine and trainer disagree on log-probs by up to {difference:.2g} on equal "
        "weights: they do not compute the same model (dtype, attention or sampling settings?)"
    )


def plan_in_force(run_events: Iterable[Event]) -> Plan | None:
    """The conductor's plan after these starts and resumptions; None where the settings give no number of steps."""
    settings = settings_in_force(run_events)
    if settings.rollout.num_rollout is None:
        return None
    return make_plan(settings.rollout, settings.evaluation, settings.trainer)


class WorkingTime:
    """How long a run was on and how long it could work, by its log. Nanoseconds, by the writers' clocks.

    on: from run.started or run.resumed to the last event of that incarnation, over all of them: time without a launcher
    is left out. worked: the part of it in which an engine could generate and a trainer could train; of a run that
    follows another, in which a trainer could train. startup: of the newest incarnation, until it could; None before.
    last: UTC. lives: number of incarnations.
    """

    def __init__(self) -> None:
        self.on = self.worked = self.lives = self.last = 0
        self.startup: int | None = None
        self._since = 0
        self._follows = self._generates = self._trains = False

    def apply(self, event: Event, at: int) -> None:
        """Take in the next event of the log."""
        if isinstance(event, RunStarted | RunResumed):
            if isinstance(event, RunStarted):
                self._follows = event.branched is not None and event.branched.follows
            self._generates, self._trains, self.startup = self._follows, False, None
            self._since = self.last = at
            self.lives += 1
            return
        passed = max(0, at - self.last) if self.lives else 0
        self.last += passed
        self.on += passed
        # Before a failure a run may have stood still up to its deadline, whether its launcher was there or not.
        if self.startup is not None and not isinstance(event, RunFailed):
            self.worked += passed
        self._generates |= isinstance(event, WeightsActivated | RolloutProgressed | RolloutCompleted)
        is_trainer = isinstance(event, WorkerJoined) and event.role == "trainer"
        self._trains |= is_trainer or isinstance(event, WeightsPublished | StepClaimed | StepCommitted)
        if self._generates and self._trains and self.startup is None:
            self.startup = self.last - self._since


class Progress:
    """Folds a run's log into step lines and figures."""

    def __init__(self, run: str) -> None:
        self.state = RunState(run=run)
        self.steps: list[StepLine] = []
        self.evals: list[EvalCompleted] = []
        self.activation_lags: list[float] = []
        self.workers: list[WorkerJoined] = []
        self.time = WorkingTime()
        self._sealed: dict[int, tuple[BatchSealed, float]] = {}
        self._saving_s = 0.0
        self._worked_at_commit = self._tokens_at_commit = self._warmed_up = 0
        self._recent: deque[float] = deque(maxlen=10)

    def apply(self, recorded: Recorded) -> StepLine | None:
        """Fold one event in; the step's line where it committed one."""
        apply(self.state, recorded)
        event = recorded.envelope.event
        self.time.apply(event, recorded.envelope.at)
        match event:
            case BatchSealed():
                self._sealed[event.step] = (event, self._mean_length(event))
            case StepCommitted():
                return self._commit(event)
            case CheckpointSaved():
                self._saving_s += event.seconds
            case EvalCompleted():
                self.evals.append(event)
            case WeightsActivated(returns=False):
                self.activation_lags.append(event.lag)
            case WorkerJoined():
                self.workers.append(event)
        return None

    def _commit(self, event: StepCommitted) -> StepLine:
        batch, mean_length = self._sealed.pop(event.step)
        counts = self.state.counts
        passed = max(self.time.worked - self._worked_at_commit, 1) * NANO
        # A batch of the incarnation before may be trained while the engines still start.
        seconds = max(passed, sum(event.seconds.values()))
        busy = min(seconds, sum(event.seconds.values()) + self._saving_s)
        decided = counts.groups_accepted + counts.groups_rejected
        tokens = counts.response_tokens - self._tokens_at_commit
        line = StepLine(
            step=event.step,
            version=event.version,
            reward=statistics.fmean(batch.raw_rewards) if batch.raw_rewards else 0.0,
            accepted_share=counts.groups_accepted / decided if decided else 1.0,
            mean_length=mean_length,
            tokens_per_s=tokens / seconds,
            staleness=event.parent_version - batch.oldest_version,
            seconds=seconds,
            idle=1.0 - busy / seconds,
            metrics=event.metrics,
        )
        self._worked_at_commit, self._tokens_at_commit, self._saving_s = self.time.worked, counts.response_tokens, 0.0
        self._expect(seconds)
        self.steps.append(line)
        return line

    def _expect(self, seconds: float) -> None:
        """The first step of an incarnation warms up: it predicts others only until there is another."""
        warm, self._warmed_up = self._warmed_up == self.time.lives, self.time.lives
        if warm and len(self.steps) == 1:
            self._recent.clear()
        if warm or not self._recent:
            self._recent.append(seconds)

    def _mean_length(self, batch: BatchSealed) -> float:
        """Of its samples; 0 where they are another run's."""
        groups = (self.state.groups[group] for group in batch.groups if group in self.state.groups)
        lengths = [sample.length for group in groups for sample in group.samples.values()]
        return statistics.fmean(lengths) if lengths else 0.0

    @property
    def in_flight(self) -> int:
        """Requested samples without a reward."""
        return sum(1 for g in self.state.groups.values() for s in g.samples.values() if s.reward is None)

    @property
    def trainer_idle(self) -> float | None:
        """Share of the time from the first commit to the last in which the trainer had nothing to train or save."""
        lines = self.steps[1:]
        return sum(line.idle * line.seconds for line in lines) / sum(line.seconds for line in lines) if lines else None

    def eta_s(self, steps: int) -> float | None:
        """Seconds to go until `steps` are committed (those of a branch's parent among them), by the last ten."""
        return statistics.fmean(self._recent) * (steps - self.state.steps) if self._recent else None

    def summary(self) -> dict[str, Any]:
        """The run's figures. steps: committed in all, those before a branch's beginning included."""
        rewards = [line.reward for line in self.steps]
        few = WINDOW if len(rewards) >= 2 * WINDOW else 1
        differences = [line.metrics[AGREES] for line in self.steps if AGREES in line.metrics]
        seconds = [line.seconds for line in self.steps[1:]] or [line.seconds for line in self.steps]
        return {
            "run": self.state.run,
            "phase": self.state.phase.value,
            "steps": self.state.steps,
            "first_version": self.state.first,
            "weight_versions": self.state.version,
            "reward_first": statistics.fmean(rewards[:few]) if rewards else None,
            "reward_last": statistics.fmean(rewards[-few:]) if rewards else None,
            "length_first": statistics.fmean([s.mean_length for s in self.steps[:few]]) if rewards else None,
            "length_last": statistics.fmean([s.mean_length for s in self.steps[-few:]]) if rewards else None,
            "eval_first": self.evals[0].mean if self.evals else None,
            "eval_last": self.evals[-1].mean if self.evals else None,
            "eval_last_failed": self.evals[-1].failed if self.evals else None,
            "eval_last_by": self.evals[-1].other_versions if self.evals else "",
            "evals": [{name: getattr(done, name) for name in EVAL_FIELDS} for done in self.evals],
            "rewards": [round(reward, 4) for reward in rewards],
            "events": self.state.events,
            "seconds": self.time.on * NANO,
            "lives": self.time.lives,
            "last_event_at": self.time.last,
            "seconds_per_step": statistics.median(seconds) if seconds else None,
            "tokens_per_s": statistics.fmean([s.tokens_per_s for s in self.steps]) if rewards else None,
            "trainer_idle": self.trainer_idle,
            "staleness_max": max((s.staleness for s in self.steps), default=None),
            "logprob_agreement_max": max(differences, default=None),
            "activation_lag_median": statistics.median(self.activation_lags) if self.activation_lags else None,
            "counts": msgspec.to_builtins(self.state.counts),
            "rejections": dict(self.state.rejections),
            "weights_digest": self.state.weights_digest,
        }
