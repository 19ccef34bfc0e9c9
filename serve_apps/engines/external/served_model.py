"""`ServedModel`: what an SGLang server serves, and the reasons why it cannot serve a run's model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from schemas.doc import doc
from schemas.errors import EngineError
from slime_events.core.checkpoint.model_config import config_parts
from slime_events.core.config.engine import Device
from slime_events.plugins.tokenizer import Tokenizer

TEXT = "Grüße, 世界! 12345 \t\n  def f(x):\r\n    return x**2  # naïve 🙂 <|end|> </s>"
"""Text that different tokenizers encode differently."""
VOLATILE = frozenset({
    "_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures", "auto_map",
})  # fmt: skip
"""Entries of config.json that do not change the model. Precision and class are compared by themselves."""
PRECISIONS: dict[Device, str] = {"cuda": "bfloat16", "cpu": "float32"}
"""Precision of an engine by the device of the run: what the trainer publishes."""


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of SGLang's /server_info, with its own names. Those with a default may be missing in other versions."""

    model_path: str
    dtype: str
    version: str = ""
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    context_length: int | None = None
    incremental_streaming_output: bool = False
    skip_tokenizer_init: bool = False
    tokenizer_worker_num: int = 1
    disaggregation_mode: str = "null"
    speculative_algorithm: str | None = None
    preferred_sampling_params: object = None
    enable_deterministic_inference: bool = False


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of SGLang's /model_info."""

    weight_version: str
    is_generation: bool = True
    architectures: list[str] | None = None


@dataclass(frozen=True, slots=True)
class RunModel:
    """The model of a run."""

    checkpoint: Annotated[str, doc("HF folder.")]
    device: Device

    @property
    def precision(self) -> str:
        """Precision of the weights."""
        return PRECISIONS.get(self.device, "float32")


Info = TypeVar("Info", ServedModel, ModelInfo)


def read_info(data: dict[str, Any], kind: type[Info], where: str) -> Info:
    """Return the parts of a server's answer. Raises EngineError if one is missing or of another type."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise EngineError(f"{where}: the answer is not SGLang's ({error})") from error


def mismatches(served: ServedModel, info: ModelInfo, model: RunModel) -> Iterator[str]:
    """Yield the reasons why a server cannot make a run's rollouts, by what it says of itself."""
    if not info.is_generation:
        yield "it serves embeddings, and does not generate"
    yield from _other_model(served, info, model)
    if (precision := _precision(served)) != model.precision:
        yield (
            f"it computes in {precision} (--dtype {served.dtype}), and the run in {model.precision}: start it with "
            f"--dtype {model.precision}"
        )
    if served.quantization is not None and not _quantized(model.checkpoint):
        yield f"it quantizes weights (--quantization {served.quantization}), so its log-probs are of another model"
    if served.skip_tokenizer_init:
        yield "it has no tokenizer (--skip-tokenizer-init), which stop strings and end tokens need"
    if served.tokenizer_worker_num != 1:
        yield (
            f"it has {served.tokenizer_worker_num} tokenizer workers, and only one learns of new weights: leave "
            "--tokenizer-worker-num out"
        )
    if served.disaggregation_mode != "null":
        yield f"it does only a part of the work (--disaggregation-mode {served.disaggregation_mode})"
    if served.preferred_sampling_params:
        yield "it adds sampling parameters of its own (--preferred-sampling-params), which the log would not have"


def _other_model(served: ServedModel, info: ModelInfo, model: RunModel) -> Iterator[str]:
    own = next(config_parts(model.checkpoint), {})
    names = own.get("architectures") or []
    if info.architectures and names and info.architectures != names:
        yield f"it serves a {', '.join(info.architectures)}, and {model.checkpoint} is a {', '.join(names)}"
        return
    if served.model_path == model.checkpoint:
        return
    theirs = next(config_parts(served.model_path), None)
    if theirs is None:
        yield (
            f"config.json of its model {served.model_path} cannot be read on this machine, to compare it with "
            f"{model.checkpoint}: start it from that path"
        )
        return
    for name in sorted(own.keys() | theirs.keys()):
        if name not in VOLATILE and own.get(name) != theirs.get(name):
            yield (
                f"its model {served.model_path} has {name} {_short(theirs.get(name))}, and {model.checkpoint} has "
                f"{_short(own.get(name))}"
            )
            return


def _precision(served: ServedModel) -> str:
    """Return the precision that SGLang takes for its --dtype."""
    if served.dtype != "auto":
        return {"half": "float16", "float": "float32"}.get(served.dtype, served.dtype)
    config = next(config_parts(served.model_path), {})
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if stored != "float32":
        return stored
    return "bfloat16" if str(config.get("model_type", "")).startswith("gemma") else "float16"


def _quantized(checkpoint: str) -> bool:
    return any("quantization_config" in part for part in config_parts(checkpoint))


def _short(value: object) -> str:
    return "none" if value is None else f"{value!r:.60}"


def other_tokenizer(tokens: Sequence[int], tokenizer: Tokenizer) -> str | None:
    """Return a sentence if a server's tokens of `TEXT` are not those of the run's tokenizer."""
    own = tokenizer.encode(TEXT, add_special_tokens=False)
    if list(tokens) == own:
        return None
    place = next((i for i, (a, b) in enumerate(zip(tokens, own, strict=False)) if a != b), min(len(tokens), len(own)))
    return (
        f"its tokenizer is not that of the checkpoint: a text of {len(TEXT)} characters has {len(tokens)} tokens there "
        f"and {len(own)} here, and token {place} is the first that differs"
    )


def end_tokens_of(checkpoint: str, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens that end every response of SGLang for a checkpoint."""
    folder, ends = Path(checkpoint), {getattr(tokenizer, "eos_token_id", None)}
    for part in config_parts(checkpoint):
        ends |= _ids(part.get("eos_token_id"))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        ends |= _ids(json.loads((folder / "generation_config.json").read_bytes()).get("eos_token_id"))
    return frozenset(token for token in ends if token is not None)


def _ids(value: object) -> set[int | None]:
    values: Collection[object] = value if isinstance(value, list) else (value,)
    return {token for token in values if isinstance(token, int)}
