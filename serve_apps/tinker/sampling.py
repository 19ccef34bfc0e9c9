"""`sample_requests`: a call of `sample` as requests that the run's engines answer, each with the client's weights."""

from typing import Any, Literal

import msgspec

from schemas.arrays import pack_tokens
from schemas.errors import InvalidValue
from schemas.event import Purpose
from schemas.rollouts import RolloutRequested, Sampling
from serve_apps.engine.checks import check_sampling
from serve_apps.tinker.names import Samples
from slime_events.core.vocabulary import token_ids
from slime_events.loop.conductor.draw import sample_seed

_REFUSED = ("topk_prompt_logprobs", "topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k")
"""What an engine is not asked for here."""
MOST_SAMPLES = 1024
SCORES_PROMPT = {"logprob_start_len": 0}
"""SGLang's words for log-probs of the prompt too."""


class TextChunk(msgspec.Struct, frozen=True):
    tokens: list[int]
    type: str = "encoded_text"


class ModelInput(msgspec.Struct, frozen=True):
    chunks: list[TextChunk]


class SamplingParams(msgspec.Struct, frozen=True):
    """By the protocol's names."""

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str | int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class SampleRequest(msgspec.Struct, frozen=True):
    """The body of `asample`."""

    prompt: ModelInput
    sampling_params: SamplingParams
    num_samples: int = 1
    sampling_session_id: str | None = None
    seq_id: int | None = None
    base_model: str | None = None
    model_path: str | None = None
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: int | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: int = 0
    record_stability_info: bool | None = None
    type: Literal["sample"] = "sample"


def check(asked: SampleRequest, *, vocabulary: int, longest: int) -> list[int]:
    """The prompt's tokens. Raises InvalidValue with the field's name."""
    for name in _REFUSED:
        if getattr(asked, name):
            raise InvalidValue(f"{name} is not answered here: leave it out")
    if any(chunk.type != "encoded_text" for chunk in asked.prompt.chunks):
        raise InvalidValue("prompt: only encoded_text is taken here, no images and no audio")
    prompt = [token for chunk in asked.prompt.chunks for token in chunk.tokens]
    if not prompt or len(prompt) >= longest:
        raise InvalidValue(f"prompt has {len(prompt)} tokens: 1 to {longest - 1} are taken")
    token_ids(prompt, vocabulary, "prompt")
    if not 1 <= asked.num_samples <= MOST_SAMPLES:
        raise InvalidValue(f"num_samples {asked.num_samples}: 1 to {MOST_SAMPLES} are made")
    params = asked.sampling_params
    if params.max_tokens is not None and params.max_tokens < 1:
        raise InvalidValue(f"max_tokens {params.max_tokens}: 1 at least")
    check_sampling(_sampling(params, longest), vocabulary)
    return prompt


def sample_requests(
    samples: Samples, prompt: list[int], asked: SampleRequest, *, version: int, seed: int, longest: int
) -> list[RolloutRequested]:
    """One for each sample; the first one scores the prompt where that is asked for. seed: the run's."""
    params, left = asked.sampling_params, longest - len(prompt)
    sampling, tokens = _sampling(params, left), pack_tokens(prompt)
    requests = []
    for index, name in enumerate(samples.ids):
        own = sample_seed(seed if params.seed is None else params.seed, name if params.seed is None else str(index))
        requests.append(
            RolloutRequested(
                sample=name,
                group=samples.group,
                index=index,
                prompt=tokens,
                sampling=sampling,
                seed=own,
                min_version=version,
                max_version=version,
                purpose=Purpose.CALL,
                payload=SCORES_PROMPT if asked.prompt_logprobs and index == 0 else {},
            )
        )
    return requests


def _sampling(params: SamplingParams, left: int) -> Sampling:
    stop = [params.stop] if isinstance(params.stop, str) else params.stop or []
    return Sampling(
        max_new_tokens=min(left, params.max_tokens or left),
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        stop=tuple(one for one in stop if isinstance(one, str)),
        stop_token_ids=tuple(one for one in stop if isinstance(one, int)),
        more={"ignore_eos": True} if params.stop == [] else {},
    )
