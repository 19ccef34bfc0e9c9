"""`Scores`: log-probs of a step's samples before its update, under the policy and under frozen models."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from actors.step.policy import TEACHER, Frozen, OfSamples, Policy
from actors.step.step_settings import StepSettings
from schemas.errors import TrainerError
from slime_events.core.training.train_batch import TrainBatch, TrainSample
from slime_events.loop.training.past_versions import OLD_ACTOR


class Scores:
    """Computes log-probs.

    kept: the samples of optimizer steps. entropies: filled with the policy's entropies in the same form; None if they
    are not needed.
    """

    def __init__(
        self,
        policy: Policy,
        settings: StepSettings,
        batch: TrainBatch,
        kept: Sequence[int],
        entropies: OfSamples | None,
    ) -> None:
        self._policy, self._settings, self._batch = policy, settings, batch
        self._kept, self._entropies = kept, entropies

    @property
    def has_older(self) -> bool:
        """Whether versions older than the policy give the old log-probs."""
        return bool(self._batch.old)

    def shared(self, scores: OfSamples) -> OfSamples:
        """Gather the scores of all kept samples from all ranks; collective. scores: this rank's."""
        place = self._policy.place
        lengths = [self._batch.samples[index].response_length for index in self._kept]
        flat = torch.zeros(sum(lengths))
        views = dict(zip(self._kept, torch.split(flat, lengths), strict=True))
        for index, score in scores.items():
            views[index].copy_(score)
        if place.data.size() > 1:
            # The collective works on the device. On the CPU both are the same memory.
            there = flat.to(place.device)
            dist.all_reduce(there, group=place.data)
            flat.copy_(there)
        return views

    def policy(self, indices: Sequence[int]) -> OfSamples:
        """Return log-probs under the current policy."""
        batch = self._batch
        return self._policy.score(batch.samples, indices, batch.temperature, self._entropies)

    def old(self, indices: Sequence[int]) -> OfSamples:
        """Return log-probs under the version that sampled each token, if that version is kept, else the policy."""
        scores = self.policy(indices)
        for stored in self._batch.old:
            self._model(OLD_ACTOR).become(stored)
            spans = {
                index: [span for span in self._batch.samples[index].spans if span.version == stored.version]
                for index in indices
            }
            older = self.frozen(OLD_ACTOR, [index for index in indices if spans[index]])
            for index, log_probs in older.items():
                scores[index] = scores[index].clone()
                for span in spans[index]:
                    scores[index][span.start : span.end] = log_probs[span.start : span.end]
        return scores

    def frozen(self, name: str, indices: Sequence[int]) -> OfSamples:
        """Return log-probs under a frozen model. Raises TrainerError if the trainer was built without it."""
        return self._model(name).score(self._batch.samples, indices, self._batch.temperature)

    def _model(self, name: str) -> Frozen:
        model = self._policy.frozen_model(name)
        if model is None:
            raise TrainerError(f"the settings need log-probs of the {name}, but the trainer was built without it")
        return model

    def teacher(self, indices: Sequence[int]) -> OfSamples:
        """Return log-probs under the ranks' teacher, or those recorded by graders. Raises TrainerError without them."""
        if self._settings.algorithm.opd_type != "sglang":
            return self.frozen(TEACHER, indices)
        return {index: torch.tensor(_recorded(self._batch.samples[index])) for index in indices}


def _recorded(sample: TrainSample) -> list[float]:
    log_probs = sample.teacher_log_probs
    if log_probs is None or len(log_probs) != sample.response_length:
        raise TrainerError(
            f"sample {sample.sample} has no teacher log-probs (opd-type sglang): its reward function must set "
            "sample.teacher_log_probs, as slime.rollout.on_policy_distillation.reward_func does"
        )
    recorded: list[float] = log_probs.tolist()
    return recorded


def rollout_or_own(rollout: Tensor, own: Tensor) -> Tensor:
    """Return the engine's log-probs [response], with the trainer's own, for a ratio of 1, in place of NaN."""
    return torch.where(torch.isnan(rollout), own.to(rollout.dtype), rollout)
