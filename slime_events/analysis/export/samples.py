"""`Samples`: complete samples from a log, each as soon as its fate is known. The fold holds only what is undecided."""

import itertools
from collections.abc import Mapping, Sequence

from msgspec import structs

from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose
from schemas.groups import GroupRejected, RejectionCause
from schemas.ids import group_of, order_in_group
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutRequested
from slime_events.analysis.export.sample import ExportedSample, Fate
from slime_events.core.tokens.trajectory import Fetch, Trajectories, Trajectory
from slime_events.core.training.batch_columns import BatchMasks
from slime_events.model.records import Entry, Run
from slime_events.plugins.sample_view import DecodePrompt, final_metadata, prompt_text

_NEEDED = (PromptSubmitted, RolloutRequested, RolloutCompleted, RewardAssigned)


class Samples:
    """Records of the read model with the tokens beside them, dropped with their group.

    fetch: reads arrays of events or the blob store. decode: see `prompt_text`.
    """

    def __init__(self, run: str, fetch: Fetch, decode: DecodePrompt | None = None) -> None:
        self._run, self._fetch, self._decode = Run(run), fetch, decode
        self._trajectories = Trajectories(fetch)

    def apply(self, event: Event, position: int) -> list[ExportedSample]:
        """Take in the next event. Return the samples whose fate it decides, in training order or in the order of the
        group.
        """
        if isinstance(event, RolloutRequested) and event.purpose is Purpose.CALL:
            return []  # the rollout function's samples are exported instead
        self._trajectories.apply(event, position)
        match event:
            case RolloutCompleted() if event.sample not in self._trajectories.by_sample:
                return []
            case GroupRejected():
                group = self._run.groups.get(event.group)
                samples = [sample.sample for sample in group.members] if group else []
                return self._done(Fate.REJECTED, samples, None, reason=event.reason)
            case BatchSealed():
                masks = BatchMasks(event, self._fetch)
                for name in masks.samples:
                    trajectory = self._trajectories.by_sample[name]
                    trajectory.loss_mask = masks.of(name, trajectory.loss_mask, trajectory.length)
                return self._done(Fate.TRAINED, event.samples, event.step, event.rewards)
            case EvalCompleted():
                return self._done(Fate.EVALUATED, self._evaluated(event), event.version)
        if isinstance(event, _NEEDED):
            # Unchanged: `Run.apply` drops token arrays, from which prompts of older logs are decoded.
            self._run.add(Entry(event, position, 0, "", self._run.run))
        return []

    def _evaluated(self, event: EvalCompleted) -> list[str]:
        return [
            sample.sample
            for group in self._run.groups.values()
            if group.prompt is not None
            and (prompt := group.prompt.event).purpose is Purpose.EVAL
            and (prompt.dataset, prompt.version) == (event.dataset, event.version)
            for sample in group.members
        ]

    def _done(
        self,
        fate: Fate,
        ids: Sequence[str],
        step: int | None,
        rewards: Sequence[float] = (),
        reason: str | None = None,
    ) -> list[ExportedSample]:
        trajectories = self._trajectories.by_sample
        exported = [
            self._exported(fate, trajectories[sample], step, reward, reason)
            for sample, reward in zip(ids, rewards or itertools.repeat(None, len(ids)), strict=True)
            if sample in trajectories
        ]
        for name in {group_of(sample) for sample in ids}:
            group = self._run.forget(name)
            self._trajectories.forget(tuple(group.samples) if group else ())
        return exported

    def _exported(
        self, fate: Fate, trajectory: Trajectory, step: int | None, normalised: float | None, reason: str | None
    ) -> ExportedSample:
        group, sample = self._run.groups[group_of(trajectory.sample)], self._run.samples[trajectory.sample]
        assert group.prompt is not None
        assert sample.completed is not None
        prompt, end = group.prompt.event, sample.completed.event
        reward = sample.reward.event if sample.reward and isinstance(sample.reward.event, RewardAssigned) else None
        prompt_tokens, is_own = self._fetch(trajectory.prompt), end.prompt is not None
        mask = [1] * trajectory.length if trajectory.loss_mask is None else trajectory.loss_mask.tolist()
        return ExportedSample(
            run=self._run.run,
            fate=fate,
            step=step,
            group=prompt.group,
            sample=trajectory.sample,
            rollout=trajectory.rollout,
            index=order_in_group(trajectory.sample)[0],
            dataset=prompt.dataset,
            prompt=prompt_text(prompt, end, self._decode),
            messages=None if is_own else prompt.messages,
            group_prompt=(prompt.messages or prompt.text) if is_own else None,
            label=end.attributes.get("label", prompt.label),
            tools=prompt.tools,
            metadata=final_metadata(prompt, end),
            source=prompt.source.path,
            line=prompt.source.line,
            tokens=[*prompt_tokens.tolist(), *trajectory.tokens.tolist()],
            prompt_length=len(prompt_tokens),
            response=trajectory.text,
            response_length=trajectory.length,
            log_probs=trajectory.log_probs.tolist(),
            loss_mask=mask,
            spans=[(span.start, span.end, span.version) for span in trajectory.spans],
            stop=trajectory.stop.value if trajectory.stop else None,
            reward=reward.value if reward else None,
            reward_detail=reward.detail if reward else None,
            advantage_input=normalised,
            reason=reason,
            teacher_log_probs=self._fetch(taught).tolist() if reward and (taught := reward.teacher_log_probs) else None,
        )


class FollowedSamples:
    """The samples of a run that follows another: generated there, trained here. Reads the followed run's log.

    batches: those of the following run, by step; each replaces the other run's batch. Groups that are not trained on
    here count as rejected. Samples left out of a trained group, and the other run's evaluations, are left out.
    """

    def __init__(self, run: str, samples: Samples, batches: Mapping[int, BatchSealed]) -> None:
        self._run, self._samples, self._batches = run, samples, batches
        self._refused: dict[str, GroupRejected] = {}

    def apply(self, event: Event, position: int) -> list[ExportedSample]:
        """Take in the followed run's next event. Return the samples whose fate it decides."""
        if isinstance(event, GroupRejected):
            self._refused[event.group] = event
            return []
        if isinstance(event, BatchSealed):
            return self._seal(event, position)
        exported = self._samples.apply(event, position)
        return [] if isinstance(event, EvalCompleted) else exported

    def _seal(self, other: BatchSealed, position: int) -> list[ExportedSample]:
        mine = self._batches.get(other.step)
        for group in other.groups if mine is not None else ():
            reason = f"run {self._run} does not train on it"
            self._refused[group] = GroupRejected(group=group, cause=RejectionCause.FILTER, reason=reason)
        exported: list[ExportedSample] = []
        for group, refused in self._refused.items():
            if mine is None or group not in mine.groups:
                exported += self._samples.apply(refused, position)
        self._refused.clear()
        if mine is None:  # before the run began, or not trained on yet
            self._samples.apply(other, position)
            return []
        graded = dict(zip(mine.samples, mine.raw_rewards, strict=True))
        return exported + [
            structs.replace(sample, reward=graded[sample.sample]) for sample in self._samples.apply(mine, position)
        ]
