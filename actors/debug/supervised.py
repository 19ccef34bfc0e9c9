"""`Supervised`: answers requests with the chats of the data set, for supervised fine-tuning without engines.

prompt.submitted -> (the conductor) -> rollout.requested -> rollout.completed + reward.assigned of 0
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from actors.debug.answerer import Answer, Answerer
from schemas.arrays import pack, pack_log_probs, pack_tokens, unpack
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutRequested, StopReason, WeightSpan
from slime_events.core.checkpoint.vocabulary import vocabulary_of, wrong_id
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.join import join_run
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import RunAddress
from slime_events.core.tokens.trajectory import content_digest
from slime_events.plugins.loader import digest_of, name_of
from slime_events.plugins.loss_masks import MultiTurnLossMaskGenerator
from slime_events.plugins.tokenizer import load_tokenizer
from storage.blobs import BlobStore
from storage.payloads import Offload, offload_async


class Supervised(Answerer):
    """Holds the prompts of groups that are neither accepted nor rejected.

    masks: tokenizes chats; the tokenizer may produce ids beyond the model's vocabulary. vocabulary: size of the model's
    vocabulary; None is unknown.
    """

    def __init__(
        self, worker: Participant, masks: MultiTurnLossMaskGenerator, offload: Offload, vocabulary: int | None = None
    ) -> None:
        super().__init__(worker, offload)
        self._masks, self._vocabulary = masks, vocabulary
        self._prompts: dict[str, PromptSubmitted] = {}

    def observe(self, event: Event) -> None:
        """Keep the chats of open groups."""
        if isinstance(event, PromptSubmitted):
            self._prompts[event.group] = event
        elif isinstance(event, GroupAccepted | GroupRejected):
            self._prompts.pop(event.group, None)

    async def answers(self, request: RolloutRequested) -> Sequence[Answer]:
        """Return the tokens after the prompt as the response, with the mask of the assistant's turns."""
        prompt = self._prompts[request.group]
        answers = example(request, prompt, self._masks, self.worker.id)
        completed = answers[0]
        assert isinstance(completed, RolloutCompleted)
        for array, field in ((prompt.tokens, "prompt"), (completed.tokens, "answer")):
            if (reason := wrong_id(unpack(array), self._vocabulary)) is not None:
                return [_failed(request, f"{field}: {reason}", self.worker.id)]
        return answers


def _failed(request: RolloutRequested, reason: str, worker: str) -> RolloutFailed:
    return RolloutFailed(
        sample=request.sample,
        group=request.group,
        attempt=request.attempt,
        kind=FailureKind.INVALID,
        message=reason,
        engine=worker,
    )


def example(
    request: RolloutRequested, prompt: PromptSubmitted, masks: MultiTurnLossMaskGenerator, worker: str
) -> list[Answer]:
    """Return the chat as a completed rollout with a reward of 0. Log-probs are 0 because no engine sampled it."""
    whole, mask = masks.get_loss_mask(prompt.messages or (), prompt.tools)
    tokens, trained = np.asarray(whole[prompt.tokens.n :], np.int32), np.asarray(mask[prompt.tokens.n :], np.int8)
    log_probs, length = np.zeros(len(tokens), np.float32), len(tokens)
    made_by = type(masks).get_loss_mask
    return [
        RolloutCompleted(
            sample=request.sample,
            group=request.group,
            attempt=request.attempt,
            start=0,
            length=length,
            prompt_length=prompt.tokens.n,
            stop=StopReason.STOP,
            text=masks.tokenizer.decode(tokens.tolist()),
            spans=(WeightSpan(0, length, request.min_version),),
            digest=content_digest(tokens, log_probs),
            engine=worker,
            tokens=pack_tokens(tokens),
            log_probs=pack_log_probs(log_probs),
            loss_mask=None if trained.all() else pack(trained, "int8"),
        ),
        RewardAssigned(
            sample=request.sample,
            group=request.group,
            value=0.0,
            grader=name_of(made_by),
            grader_digest=digest_of(made_by),
        ),
    ]


class SupervisedActor:
    """Replaces engines and graders."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Answer requests until the end of the run."""
        async with join_run(address, "loader") as worker:
            masks = MultiTurnLossMaskGenerator(
                load_tokenizer(settings.engine.hf_checkpoint), settings.data.loss_mask_type
            )
            offload = partial(offload_async, blobs=BlobStore(address.blob_url))
            await worker.join({})
            await Supervised(worker, masks, offload, vocabulary_of(settings.engine.hf_checkpoint)).run()
