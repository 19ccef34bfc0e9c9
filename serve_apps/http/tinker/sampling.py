"""`sample_requests`: turns a call of `sample` into rollout requests for the engines, with the client's weights."""

from typing import Annotated, Literal

import msgspec

from schemas.arrays import pack_tokens
from schemas.doc import doc
from schemas.errors import InvalidValue
from schemas.event import Purpose
from schemas.ids import sample_seed
from schemas.rollouts import RolloutRequested, Sampling
from serve_apps.engines.checks import check_sampling
from serve_apps.http.tinker.names import Samples
from slime_events.core.checkpoint.vocabulary import token_ids

_REFUSED = ("topk_prompt_logprobs", "topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k")
"""Fields that this server does not support."""
MOST_SAMPLES = 1024
SCORES_PROMPT = {"logprob_start_len": 0}
"""SGLang's parameters for log-probs of the prompt."""


class TextChunk(msgspec.Struct, frozen=True):
    tokens: list[int]
    type: str = "encoded_text"


class ModelInput(msgspec.Struct, frozen=True):
    chunks: list[TextChunk]


class SamplingParams(msgspec.Struct, frozen=True):
    """Sampling parameters by the protocol's names."""

    max_tokens: Annotated[int | None, doc("limit of generated tokens; None: the rest of the context")] = None
    seed: Annotated[int | None, doc("None: derived from the run's seed")] = None
    stop: Annotated[str | list[str | int] | None, doc("stop strings and token ids; []: ignore the end token too")] = (
        None
    )
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
    target_prompt_logprobs: object = None
    prompt_alt_tokens_k: int = 0
    record_stability_info: bool | None = None
    type: Literal["sample"] = "sample"


def check(request: SampleRequest, *, vocabulary: int, longest: int) -> list[int]:
    """Return the prompt's tokens. longest: limit of a sequence in tokens. Raises InvalidValue with the field's name."""
    for name in _REFUSED:
        if getattr(request, name):
            raise InvalidValue(f"{name} is not supported: leave it out")
    if any(chunk.type != "encoded_text" for chunk in request.prompt.chunks):
        raise InvalidValue("prompt: every chunk must be encoded_text; images and audio are not supported")
    prompt = [token for chunk in request.prompt.chunks for token in chunk.tokens]
    if not prompt or len(prompt) >= longest:
        raise InvalidValue(f"prompt has {len(prompt)} tokens, must have 1 to {longest - 1}")
    token_ids(prompt, vocabulary, "prompt")
    if not 1 <= request.num_samples <= MOST_SAMPLES:
        raise InvalidValue(f"num_samples must be 1 to {MOST_SAMPLES}, not {request.num_samples}")
    params = request.sampling_params
    if params.max_tokens is not None and params.max_tokens < 1:
        raise InvalidValue(f"max_tokens must be at least 1, not {params.max_tokens}")
    check_sampling(_sampling(params, longest), vocabulary)
    return prompt


def sample_requests(
    samples: Samples, prompt: list[int], request: SampleRequest, *, version: int, seed: int, longest: int
) -> list[RolloutRequested]:
    """Return a request for each sample. The first one also scores the prompt if the client asks for it.

    seed: of the run. longest: limit of a sequence in tokens.
    """
    params, left = request.sampling_params, longest - len(prompt)
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
                payload=SCORES_PROMPT if request.prompt_logprobs and index == 0 else {},
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
        stop=tuple(text for text in stop if isinstance(text, str)),
        stop_token_ids=tuple(token for token in stop if isinstance(token, int)),
        more={"ignore_eos": True} if params.stop == [] else {},
    )
