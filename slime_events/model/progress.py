"""`Progress`: step lines and figures of a run, live and for its summary. A fold of the log."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import msgspec

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.doc import doc
from schemas.evals import EvalCompleted
from schemas.event import Event
from schemas.ids import session_name
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed
from schemas.runs import RunFailed, RunResumed, RunStarted
from schemas.sessions import SessionOpened, SessionSealed
from schemas.steps import StepClaimed, StepCommitted
from schemas.turns import TurnBegun, TurnRecorded
from schemas.weights import WeightsActivated, WeightsPublished
from schemas.workers import WorkerJoined
from slime_events.core.run.run_settings import settings_in_force
from slime_events.core.state.apply import apply_all
from slime_events.core.state.partial_events import PARTIAL_EVENTS, FoldedEvent, read_partial_events
from slime_events.core.state.run import FOLD
from slime_events.core.state.snapshot import Snapshot
from slime_events.core.state.state_fold import StateFold
from slime_events.loop.conductor.plan import Plan, make_plan
from slime_events.model.session_figures import EndedSessions, OpenSession
from storage.event_block import EventBlock
from storage.log import Recorded

NANO = 1e-9
WINDOW = 5
"""Number of steps at either end over which a summary takes its means; 1 if a run has fewer than twice as many."""
KEPT = 50
"""Minimum number of step lines that are kept."""
PREDICTING = 10
"""Number of newest steps that predict the duration of the next."""
EVAL_FIELDS = ("dataset", "version", "mean", "pass_rates", "samples", "failed", "oldest_version", "newest_version")


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """One committed step."""

    step: Annotated[int, doc("number of the step, from 0")]
    version: Annotated[int, doc("weight version that it made")]
    reward: Annotated[float, doc("mean raw reward of its batch")]
    accepted_share: Annotated[float, doc("accepted share of all groups decided so far")]
    mean_length: Annotated[float, doc("mean response length in its batch [tokens]")]
    tokens_per_s: Annotated[float, doc("response tokens per second since the step before")]
    staleness: Annotated[int, doc("versions by which its oldest sample was behind")]
    seconds: Annotated[float, doc("time since the step before, without downtime and startup [s]")]
    idle: Annotated[float, doc("share of that time in which the trainer had no work")]
    metrics: Annotated[dict[str, float], doc("metrics of the trainer by name")]


class SealedFigures(msgspec.Struct, frozen=True):
    """Figures of a sealed batch."""

    reward: Annotated[float, doc("mean raw reward")]
    mean_length: Annotated[float, doc("mean response length [tokens]")]
    oldest_version: Annotated[int, doc("oldest weight version that made a token")]


STARTS = (RunStarted, RunResumed)
GENERATES = {
    *(WeightsActivated, RolloutProgressed, RolloutCompleted),
    *(PARTIAL_EVENTS[kind] for kind in (RolloutProgressed, RolloutCompleted)),
}
"""Events, whole and partial, that show that an engine is running."""
TRAINS = {WeightsPublished, StepClaimed, StepCommitted}
"""Events that show that a trainer is running. So does the trainer's `WorkerJoined`."""
TURN_ENDED = {TurnRecorded, PARTIAL_EVENTS[TurnRecorded]}
FIGURE_EVENTS = {
    *(BatchSealed, StepCommitted, CheckpointSaved, EvalCompleted, WeightsActivated, WorkerJoined),
    *(SessionOpened, SessionSealed, RolloutFailed, TurnBegun, *TURN_ENDED),
}
"""Events that change figures: a few per step, except for agents' turns."""

DISAGREEMENT = "logprob_agreement_max"
MAX_ROUNDING = 1.0
"""Largest difference of a token's log-prob on equal weights that rounding can explain: 1e-5 in float32, about 0.1 in
bfloat16.
"""


def disagreement(line: StepLine) -> str | None:
    """Return a warning if the log-probs of engine and trainer differ by more than rounding explains."""
    difference = line.metrics.get(DISAGREEMENT, 0.0)
    if difference <= MAX_ROUNDING:
        return None
    return (
        f"warning: step {line.step}: engine and trainer disagree on log-probs by up to {difference:.2g} on equal "
        "weights: they compute different models. Check dtype, attention and sampling settings"
    )


def plan_in_force(run_events: Iterable[Event]) -> Plan | None:
    """Return the conductor's plan after these starts and resumptions; None if the settings give no number of steps."""
    settings = settings_in_force(run_events)
    if settings.rollout.num_rollout is None:
        return None
    return make_plan(settings.rollout, settings.evaluation, settings.trainer)


class WorkingTime(msgspec.Struct):
    """Time in which a run was up, and in which it could work, from its log. Durations by the writers' clocks."""

    on: Annotated[int, doc("from each start or resumption to the last event of its incarnation, summed [ns]")] = 0
    worked: Annotated[
        int,
        doc("part of `on` in which an engine could generate (unless the run follows another) and a trainer train [ns]"),
    ] = 0
    lives: Annotated[int, doc("number of incarnations")] = 0
    last: Annotated[int, doc("UTC of the last event [ns]")] = 0
    startup: Annotated[int | None, doc("startup of the newest incarnation [ns]; None until it can work")] = None
    since: Annotated[int, doc("UTC of the newest incarnation's beginning [ns]")] = 0
    follows: Annotated[bool, doc("whether the batches are made of another run's rollouts")] = False
    generates: Annotated[bool, doc("whether an engine is running")] = False
    trains: Annotated[bool, doc("whether a trainer is running")] = False

    def apply(self, event: object, at: int) -> None:
        """Take in the next event of the log, whole or partial."""
        kind = type(event)
        if isinstance(event, STARTS):
            if isinstance(event, RunStarted):
                self.follows = event.branched is not None and event.branched.follows
            self.generates, self.trains, self.startup = self.follows, False, None
            self.since = self.last = at
            self.lives += 1
            return
        passed = max(0, at - self.last) if self.lives else 0
        self.last += passed
        self.on += passed
        # Before a failure a run may have been idle up to its deadline, with or without its launcher.
        if self.startup is not None:
            self.worked += passed if kind is not RunFailed else 0
            return
        self.generates |= kind in GENERATES
        self.trains |= kind in TRAINS or (isinstance(event, WorkerJoined) and event.role == "trainer")
        if self.generates and self.trains:
            self.startup = self.last - self.since


class Figures(msgspec.Struct):
    """Figures that a run's progress adds to its state. Their size is bounded, except for a few numbers per step."""

    steps: Annotated[list[StepLine], doc("newest step lines")] = []
    rewards: Annotated[list[float], doc("mean raw reward of every step")] = []
    seconds: Annotated[list[float], doc("duration of every step [s]")] = []
    first_lengths: Annotated[list[float], doc("mean response length of the first `WINDOW` steps [tokens]")] = []
    idle_s: Annotated[float, doc("trainer's time without work, from the second step on [s]")] = 0.0
    rest_s: Annotated[float, doc("duration of the same steps [s]")] = 0.0
    tokens_per_s: Annotated[float, doc("sum over the steps of response tokens per second")] = 0.0
    staleness: Annotated[int | None, doc("largest so far [versions]; None before the first step")] = None
    disagreement: Annotated[float | None, doc("largest log-prob difference so far; None until a step has any")] = None
    evals: Annotated[list[EvalCompleted], doc("evaluations that ended")] = []
    activation_lags: Annotated[list[float], doc("per load of an engine, time since the publication [s]")] = []
    workers: Annotated[list[WorkerJoined], doc("workers that joined")] = []
    time: Annotated[WorkingTime, doc("how long the run was up and could work")] = msgspec.field(
        default_factory=WorkingTime
    )
    sealed: Annotated[dict[int, SealedFigures], doc("batches that are not trained yet, by step")] = {}
    saving_s: Annotated[float, doc("time of saving since the last commit [s]")] = 0.0
    worked_at_commit: Annotated[int, doc("`time.worked` at the last commit [ns]")] = 0
    tokens_at_commit: Annotated[int, doc("response tokens at the last commit")] = 0
    warmed_up: Annotated[int, doc("incarnations that have committed a step")] = 0
    recent: Annotated[list[float], doc("durations that predict the next step [s]")] = []
    sessions: Annotated[dict[str, OpenSession], doc("open agents' sessions by sample")] = {}
    ended: Annotated[EndedSessions, doc("ended agents' sessions")] = msgspec.field(default_factory=EndedSessions)

    def add(self, line: StepLine) -> None:
        """Add the next step."""
        if self.seconds:
            self.idle_s += line.idle * line.seconds
            self.rest_s += line.seconds
        self.rewards.append(line.reward)
        self.seconds.append(line.seconds)
        self.tokens_per_s += line.tokens_per_s
        self.staleness = line.staleness if self.staleness is None else max(self.staleness, line.staleness)
        if (differs := line.metrics.get(DISAGREEMENT)) is not None:
            self.disagreement = differs if self.disagreement is None else max(self.disagreement, differs)
        if len(self.first_lengths) < WINDOW:
            self.first_lengths.append(line.mean_length)
        self.steps.append(line)
        if len(self.steps) >= 2 * KEPT:
            del self.steps[:-KEPT]


class ProgressSnapshot(Snapshot, frozen=True, kw_only=True):
    """A run's progress at one position, as its launcher stores it."""

    figures: Annotated[Figures, doc("the figures; the state is in `Snapshot`")]


class Progress(StateFold):
    """Fold a run's log into step lines and figures."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.figures = Figures()

    def restore(self, snapshot: Snapshot) -> None:
        """Begin with a `ProgressSnapshot`."""
        assert isinstance(snapshot, ProgressSnapshot)
        self.state, self.figures = snapshot.state, snapshot.figures

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(
            ProgressSnapshot(fold=FOLD, before=self.before, state=self.state, figures=self.figures)
        )

    def apply(self, recorded: Recorded) -> StepLine | None:
        """Fold in one event. Return the step's line if the event commits a step."""
        super().apply(recorded)
        event = recorded.envelope.event
        self.figures.time.apply(event, recorded.envelope.at)
        return self._take(event) if type(event) in FIGURE_EVENTS else None

    def apply_block(self, block: EventBlock) -> None:
        """Fold in many events. An event's figures depend on the state just after it."""

        def parts() -> Iterator[tuple[int, Sequence[FoldedEvent]]]:
            for first, events in read_partial_events(block.parts, decisions=True):
                begin, time = 0, self.figures.time
                for end, folded in enumerate(events, 1):
                    time.apply(folded.event, folded.at)
                    if type(folded.event) in FIGURE_EVENTS:
                        yield (
                            first + begin,
                            events[begin:end],
                        )  # folded in before this generator resumes
                        self._take(folded.event)
                        begin = end
                yield first + begin, events[begin:]

        apply_all(self.state, parts(), block.chain.hex())
        self.before = block.before.hex()

    def _take(self, event: Event) -> StepLine | None:
        figures = self.figures
        if type(event) in TURN_ENDED:
            if (session := figures.sessions.get(event.sample)) is not None:  # type: ignore[attr-defined]
                session.turns.pop(event.index, None)  # type: ignore[attr-defined]
            return None
        match event:
            case SessionOpened():
                name = session_name(event.sample, event.attempt)
                figures.sessions[event.sample] = OpenSession(name, figures.time.last)
            case SessionSealed():
                figures.sessions.pop(event.sample, None)
                figures.ended.last = session_name(event.sample, event.attempt)
                figures.ended.sealed[event.reason] = figures.ended.sealed.get(event.reason, 0) + 1
            case RolloutFailed():
                self._fail(event)
            case TurnBegun() if event.sample in figures.sessions:
                figures.sessions[event.sample].turns[event.index] = figures.time.last
            case BatchSealed():
                reward = statistics.fmean(event.raw_rewards) if event.raw_rewards else 0.0
                figures.sealed[event.step] = SealedFigures(reward, self._mean_length(event), event.oldest_version)
            case StepCommitted():
                return self._commit(event)
            case CheckpointSaved():
                figures.saving_s += event.seconds
            case EvalCompleted():
                figures.evals.append(event)
            case WeightsActivated(returns=False):
                figures.activation_lags.append(event.lag)
            case WorkerJoined():
                figures.workers.append(event)
        return None

    def _fail(self, event: RolloutFailed) -> None:
        """Count a failed session. Its failure follows its seal in the same append, or it has no seal."""
        figures, name = self.figures, session_name(event.sample, event.attempt)
        opened = figures.sessions.get(event.sample)
        if opened is not None and opened.session == name:
            del figures.sessions[event.sample]
        elif figures.ended.last != name:
            return
        figures.ended.fail(name, event.message)

    def _commit(self, event: StepCommitted) -> StepLine:
        figures, counts = self.figures, self.state.counts
        batch, time = figures.sealed.pop(event.step), figures.time
        passed = max(time.worked - figures.worked_at_commit, 1) * NANO
        # A batch of the previous incarnation may be trained while the engines still start.
        seconds = max(passed, sum(event.seconds.values()))
        busy = min(seconds, sum(event.seconds.values()) + figures.saving_s)
        decided = counts.groups_accepted + counts.groups_rejected
        line = StepLine(
            step=event.step,
            version=event.version,
            reward=batch.reward,
            accepted_share=counts.groups_accepted / decided if decided else 1.0,
            mean_length=batch.mean_length,
            tokens_per_s=(counts.response_tokens - figures.tokens_at_commit) / seconds,
            staleness=event.parent_version - batch.oldest_version,
            seconds=seconds,
            idle=1.0 - busy / seconds,
            metrics=event.metrics,
        )
        figures.worked_at_commit, figures.tokens_at_commit, figures.saving_s = time.worked, counts.response_tokens, 0.0
        self._expect(seconds)
        figures.add(line)
        return line

    def _expect(self, seconds: float) -> None:
        """Update the durations that predict the next step. An incarnation's first step, which warms up, counts only
        until there is another.
        """
        figures = self.figures
        warm, figures.warmed_up = figures.warmed_up == figures.time.lives, figures.time.lives
        if warm and len(figures.seconds) == 1:
            figures.recent.clear()
        if warm or not figures.recent:
            figures.recent = [*figures.recent[1 - PREDICTING :], seconds]

    def _mean_length(self, batch: BatchSealed) -> float:
        """Return the mean response length of a batch [tokens]; 0 if its samples belong to another run."""
        groups = (self.state.groups[group] for group in batch.groups if group in self.state.groups)
        lengths = [sample.length for group in groups for sample in group.samples.values()]
        return statistics.fmean(lengths) if lengths else 0.0

    @property
    def in_flight(self) -> int:
        """Number of requested samples without a reward."""
        return sum(1 for g in self.state.index for s in g.samples.values() if s.reward is None)

    @property
    def trainer_idle(self) -> float | None:
        """Share of the time from the first commit to the last in which the trainer had nothing to train or save."""
        return self.figures.idle_s / self.figures.rest_s if len(self.figures.seconds) > 1 else None

    def eta_s(self, steps: int) -> float | None:
        """Return the time until `steps` are committed, estimated from the last ten [s]. steps: in all, a parent's
        included.
        """
        recent = self.figures.recent
        return statistics.fmean(recent) * (steps - self.state.steps) if recent else None

    def summary(self) -> dict[str, Any]:
        """Return the figures of the run. steps: committed in all, a parent's included."""
        figures = self.figures
        rewards, evals, lags = figures.rewards, figures.evals, figures.activation_lags
        few = WINDOW if len(rewards) >= 2 * WINDOW else 1
        seconds = figures.seconds[1:] or figures.seconds
        return {
            "run": self.state.run,
            "phase": self.state.phase.value,
            "steps": self.state.steps,
            "first_version": self.state.first,
            "weight_versions": self.state.version,
            "reward_first": statistics.fmean(rewards[:few]) if rewards else None,
            "reward_last": statistics.fmean(rewards[-few:]) if rewards else None,
            "length_first": statistics.fmean(figures.first_lengths[:few]) if rewards else None,
            "length_last": statistics.fmean([s.mean_length for s in figures.steps[-few:]]) if rewards else None,
            "eval_first": evals[0].mean if evals else None,
            "eval_last": evals[-1].mean if evals else None,
            "eval_last_failed": evals[-1].failed if evals else None,
            "eval_last_by": evals[-1].other_versions if evals else "",
            "evals": [{name: getattr(done, name) for name in EVAL_FIELDS} for done in evals],
            "rewards": [round(reward, 4) for reward in rewards],
            "events": self.state.events,
            "seconds": figures.time.on * NANO,
            "lives": figures.time.lives,
            "last_event_at": figures.time.last,
            "seconds_per_step": statistics.median(seconds) if seconds else None,
            "tokens_per_s": figures.tokens_per_s / len(rewards) if rewards else None,
            "trainer_idle": self.trainer_idle,
            "staleness_max": figures.staleness,
            "logprob_agreement_max": figures.disagreement,
            "activation_lag_median": statistics.median(lags) if lags else None,
            "counts": msgspec.to_builtins(self.state.counts),
            "rejections": dict(self.state.rejections),
            "weights_digest": self.state.weights_digest,
        }
