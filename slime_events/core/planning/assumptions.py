"""`Assumptions`: the numbers of a plan that neither the settings nor the model give, with defaults and sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import InvalidValue
from slime_events.core.config.nearest import did_you_mean

GIB = 2**30


class Assumptions(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds of the machines, and shares that depend on the data. GB are 1e9 bytes, GiB are 2^30."""

    gpu_tflops: Annotated[float, doc("peak of a GPU in bfloat16, TFLOP/s; H100 SXM without sparsity: 989")] = 989.0
    gpu_bandwidth: Annotated[float, doc("bandwidth of a GPU's memory, GB/s; H100 SXM: 3,350")] = 3350.0
    train_use: Annotated[float, doc("share of the peak that a training step reaches; Megatron, dense: 0.4")] = 0.35
    decode_use: Annotated[float, doc("share of the memory bandwidth that decoding reaches")] = 0.6
    activation_factor: Annotated[
        float, doc("memory of activations over the counted values; measured on an H200: 1.1 to 1.2 (docs/gpu.md)")
    ] = 1.25
    expert_imbalance: Annotated[float, doc("tokens of the fullest expert rank over the mean")] = 1.5
    logit_bytes: Annotated[
        float, doc("bytes of a logit: bfloat16, float32, softmax and gradient in float32: 2 + 4 + 4 + 4")
    ] = 14.0
    rank_gib: Annotated[
        float, doc("GiB of a rank beside the model: CUDA context, NCCL's buffers, workspaces, fragmentation")
    ] = 4.0
    engine_gib: Annotated[
        float, doc("GiB of an engine beside weights and cache: CUDA context, graphs, a step's temporaries")
    ] = 4.0
    asleep_gib: Annotated[
        float, doc("GiB that a process keeps on a GPU while another one has its turn: CUDA context, NCCL")
    ] = 2.0
    engine_memory: Annotated[
        float, doc("share of a GPU for weights and cache of an engine, if --sglang-mem-fraction-static is not set")
    ] = 0.85
    engine_weight_bytes: Annotated[float, doc("bytes of an engine's parameter: 2 in bfloat16, 1 in FP8")] = 2.0
    prompt_tokens: Annotated[int, doc("mean tokens of a prompt; the longest too, without --rollout-max-prompt-len")] = (
        1024
    )
    response_share: Annotated[float, doc("mean length of a response over --rollout-max-response-len")] = 0.5
    chunk_bytes: Annotated[
        float, doc("bytes of an event with a chunk of tokens, beside its tokens and log-probs; measured: 500")
    ] = 500.0
    token_bytes: Annotated[
        float, doc("bytes of a token in the log: int32, a float32 log-prob, and its text of 4 letters: 4 + 4 + 4")
    ] = 12.0
    archive_share: Annotated[float, doc("bytes of the archive over those of the log")] = 1.0
    host_copy: Annotated[float, doc("GB/s from a GPU to pageable host memory; measured on an H200 (docs/gpu.md)")] = 1.8
    disk_write: Annotated[float, doc("GB/s written to the disk of weight versions")] = 1.5
    disk_read: Annotated[float, doc("GB/s read from it by an engine")] = 4.0
    hashing: Annotated[float, doc("GB/s of sha256 on one core")] = 2.0


def read_assumptions(words: Iterable[str]) -> Assumptions:
    """Return the defaults with other values for `NAME=VALUE` words. Raises InvalidValue."""
    fields = {field.name: field for field in msgspec.structs.fields(Assumptions)}
    values: dict[str, float] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")
        if name not in fields or not equals:
            near = did_you_mean(name, fields) or f" Names: {', '.join(fields)}."
            raise InvalidValue(f"--assume {word}: give NAME=VALUE.{near}")
        try:
            number = float(text)
        except ValueError:
            raise InvalidValue(f"--assume {word}: {text} is not a number") from None
        if not 0 < number < 1e12:
            raise InvalidValue(f"--assume {word}: the value must be above 0")
        values[name] = int(number) if isinstance(fields[name].default, int) else number
    return Assumptions(**values)  # type: ignore[arg-type]  # each value has the type of its default
