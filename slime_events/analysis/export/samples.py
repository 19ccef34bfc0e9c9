"""`Samples`: whole samples out of a log, each as soon as its fate is known. A fold that holds what is open, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose
from schemas.groups import GroupRejected, RejectionCause
from schemas.ids import group_of, place_of
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutRequested
from slime_events.analysis.export.sample import ExportedSample, Fate
from slime_events.core.trajectory import Fetch, Trajectories, Trajectory
from slime_events.plugins.prompt_text import DecodePrompt, prompt_text


class Samples:
    """fetch: arrays out of events or the blob store. decode: see `prompt_text`."""

    def __init__(self, run: str, fetch: Fetch, decode: DecodePrompt | None = None) -> None:
        self._run, self._fetch, self._decode = run, fetch, decode
        self._trajectories = Trajectories(fetch)
        self._prompts: dict[str, PromptSubmitted] = {}
        self._samples: dict[str, list[str]] = {}
        self._rewards: dict[str, RewardAssigned] = {}
        self._ends: dict[str, RolloutCompleted] = {}

    def apply(self, event: Event, position: int) -> list[ExportedSample]:
        """Take in the next event; the samples that are done with by it, in training order or in that of the group."""
        self._trajectories.apply(event, position)
        match event:
            case PromptSubmitted():
                self._prompts[event.group] = event
            case RolloutRequested():
                self._join(event.group, event.sample)
            case RolloutCompleted():
                self._join(event.group, event.sample)
                self._ends[event.sample] = event
            case RewardAssigned():
                self._rewards[event.sample] = event
            case GroupRejected():
                return self._done(Fate.REJECTED, self._samples.get(event.group, ()), None, reason=event.reason)
            case BatchSealed():
                return self._done(Fate.TRAINED, event.samples, event.step, rewards=event.rewards)
            case EvalCompleted():
                return self._done(Fate.EVALUATED, self._evaluated(event), event.version)
        return []

    def _join(self, group: str, sample: str) -> None:
        members = self._samples.setdefault(group, [])
        if sample not in members:
            members.append(sample)
            members.sort(key=place_of)

    def _evaluated(self, event: EvalCompleted) -> list[str]:
        prompts = (
            prompt
            for prompt in self._prompts.values()
            if prompt.purpose is Purpose.EVAL and (prompt.dataset, prompt.version) == (event.dataset, event.version)
        )
        return [sample for prompt in prompts for sample in self._samples.get(prompt.group, ())]

    def _done(
        self,
        fate: Fate,
        samples: Sequence[str],
        step: int | None,
        *,
        rewards: Sequence[float] = (),
        reason: str | None = None,
    ) -> list[ExportedSample]:
        known = self._trajectories.by_sample
        values: Sequence[float | None] = rewards or [None] * len(samples)
        pairs = zip(samples, values, strict=True)
        found = [
            self._exported(fate, known[sample], step, reward, reason) for sample, reward in pairs if sample in known
        ]
        for group in {group_of(sample) for sample in samples}:
            members = tuple(self._samples.pop(group, ()))
            self._trajectories.forget(members)
            self._prompts.pop(group, None)
            for sample in members:
                self._rewards.pop(sample, None)
                self._ends.pop(sample, None)
        return found

    def _exported(
        self, fate: Fate, made: Trajectory, step: int | None, normalised: float | None, reason: str | None
    ) -> ExportedSample:
        prompt, reward = self._prompts[group_of(made.sample)], self._rewards.get(made.sample)
        prompt_tokens, end = self._fetch(made.prompt), self._ends[made.sample]
        is_own = end.prompt is not None
        mask = [1] * made.length if made.loss_mask is None else made.loss_mask.tolist()
        return ExportedSample(
            run=self._run,
            fate=fate,
            step=step,
            group=prompt.group,
            sample=made.sample,
            rollout=made.rollout,
            index=place_of(made.sample)[0],
            dataset=prompt.dataset,
            prompt=prompt_text(prompt, end, self._decode),
            messages=None if is_own else prompt.messages,
            group_prompt=(prompt.messages or prompt.text) if is_own else None,
            label=prompt.label,
            tools=prompt.tools,
            metadata={**prompt.metadata, **end.metadata},
            source=prompt.source.path,
            line=prompt.source.line,
            tokens=[*prompt_tokens.tolist(), *made.tokens.tolist()],
            prompt_length=len(prompt_tokens),
            response=made.text,
            response_length=made.length,
            log_probs=made.log_probs.tolist(),
            loss_mask=mask,
            spans=[(span.start, span.end, span.version) for span in made.spans],
            stop=made.stop.value if made.stop else None,
            reward=reward.value if reward else None,
            reward_detail=reward.detail if reward else None,
            advantage_input=normalised,
            reason=reason,
        )


class FollowedSamples:
    """Reads the followed run's log. batches: those of the run that follows, by step: its batch of a step takes the
    place of the other's. What is left of that one, and what was refused and is not taken, is rejected; a sample that is
    left out of a group which is trained is neither. Evaluations are those of the other run, and left out.
    """

    def __init__(self, run: str, samples: Samples, batches: Mapping[int, BatchSealed]) -> None:
        self._run, self._samples, self._batches = run, samples, batches
        self._refused: dict[str, GroupRejected] = {}

    def apply(self, event: Event, position: int) -> list[ExportedSample]:
        """Take in the followed run's next event; the samples that are done with by it."""
        match event:
            case GroupRejected():
                self._refused[event.group] = event
                return []
            case BatchSealed():
                return self._seal(event, position)
            case EvalCompleted():
                self._samples.apply(event, position)
                return []
        return self._samples.apply(event, position)

    def _seal(self, other: BatchSealed, position: int) -> list[ExportedSample]:
        mine = self._batches.get(other.step)
        if mine is None:  # of before the run began, or not trained yet
            self._samples.apply(other, position)
            for refused in self._refused.values():
                self._samples.apply(refused, position)
            self._refused.clear()
            return []
        found: list[ExportedSample] = []
        for group in other.groups:
            samples = tuple(sample for sample in other.samples if sample.startswith(f"{group}-s"))
            reason = f"run {self._run} does not train on it"
            self._refused[group] = GroupRejected(
                group=group, cause=RejectionCause.FILTER, reason=reason, samples=samples
            )
        for group, refused in self._refused.items():
            if group not in mine.groups:
                found += self._samples.apply(refused, position)
        self._refused.clear()
        graded = dict(zip(mine.samples, mine.raw_rewards, strict=True))
        return found + [structs.replace(one, reward=graded[one.sample]) for one in self._samples.apply(mine, position)]
