"""Converts between the SDK's protobuf messages and our arrays. Refuses unsupported requests with the field's name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as proto

from schemas.errors import InvalidValue
from schemas.rollouts import StopReason
from slime_events.core.checkpoint.vocabulary import check_ids
from slime_events.core.tokens.trajectory import Trajectory
from slime_events.core.training.datums import LOSSES, WEIGHTS, Datum

TARGETS = "target_tokens"
MOST_DATUMS = 65_536
"""Most datums of a pass."""
_MODEL_ID, _SEQ_ID = b"\x0a", b"\x10"
"""Tags of the first two fields of a ForwardBackwardRequest."""
_FLOATS = {proto.DTYPE_FLOAT32: "<f4", proto.DTYPE_INT64: "<i8", proto.DTYPE_INT32: "<i4"}


class PassRequest:
    """A forward or forward_backward. Raises InvalidValue if the body is not valid."""

    def __init__(self, body: bytes) -> None:
        self._request, self.size = proto.ForwardBackwardRequest(), len(body)
        try:
            self._request.ParseFromString(body)
        except DecodeError as error:
            raise InvalidValue(f"the body is not a ForwardBackwardRequest: {error}") from error
        self.model_id, self.number = self._request.model_id, self._request.seq_id
        self.backward = not self._request.forward_only

    @property
    def arguments(self) -> dict[str, Any]:
        """Name of the loss function, and the numbers of its config that the client sets. Raises InvalidValue."""
        name = self._request.loss_fn
        if name not in LOSSES:
            raise InvalidValue(f"loss_fn {name!r} is not supported: use one of {', '.join(LOSSES)}, or "
                               "forward_backward_custom, which computes your own loss at the client")  # fmt: skip
        config = dict(self._request.loss_fn_config)
        for key, value in self._request.loss_fn_config_v2.items():
            if value.WhichOneof("value") == "text":
                raise InvalidValue(f"loss_fn_config {key!r} is a string, but {name} takes numbers only")
            config[key] = value.number
        if unknown := sorted(config.keys() - LOSSES[name].config.keys()):
            keys = ", ".join(LOSSES[name].config) or "no keys"
            raise InvalidValue(f"loss_fn_config {', '.join(unknown)}: unknown; {name} takes {keys}")
        return {"loss_fn": name, "config": config}

    def datums(self, *, vocabulary: int, longest: int) -> list[Datum]:
        """Return the datums. For an invalid datum, raises InvalidValue with its index and field.

        vocabulary: token ids must be below it. longest: limit of a datum in tokens.
        """
        if not 1 <= len(self._request.data) <= MOST_DATUMS:
            raise InvalidValue(f"data has {len(self._request.data):,} datums, must have 1 to {MOST_DATUMS:,}")
        inputs = LOSSES[self.arguments["loss_fn"]].inputs
        datums = []
        for index, message in enumerate(self._request.data):
            try:
                datums.append(_datum(message, inputs, vocabulary, longest))
            except InvalidValue as error:
                raise InvalidValue(f"data[{index}]: {error}") from None
        return datums

    @property
    def samples(self) -> list[str]:
        """Sampled sequences that the client names as sources of its datums (`Datum.with_provenance`)."""
        data = self._request.data
        spans = (span for datum in data for span in (*datum.model_input_spans, *datum.loss_fn_input_spans))
        ids = (getattr(span, span.WhichOneof("span") or "sampled_tokens").sequence_id for span in spans)
        return list(dict.fromkeys(name for name in ids if name))


def call_at(begin: bytes) -> tuple[str, int] | None:
    """Return (model_id, seq_id) from the first bytes of a pass; None if the bytes do not have them."""
    length = int.from_bytes(begin[1:2])
    at = 2 + length
    if begin[:1] != _MODEL_ID or length >= 128 or begin[at : at + 1] != _SEQ_ID:
        return None
    number = 0
    for place, byte in enumerate(begin[at + 1 : at + 11]):
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return begin[2:at].decode("utf-8", "replace"), number
    return None


def _datum(message: proto.Datum, inputs: Sequence[str], vocabulary: int, longest: int) -> Datum:
    if any(chunk.WhichOneof("chunk") != "encoded_text" for chunk in message.model_input):
        raise InvalidValue("model_input: every chunk must be encoded_text; images and audio are not supported")
    tokens = np.frombuffer(b"".join(chunk.encoded_text.tokens for chunk in message.model_input), "<i4")
    if TARGETS not in message.loss_fn_inputs:
        raise InvalidValue(f"loss_fn_inputs lacks {TARGETS}")
    tensors = {name: _tensor(name, tensor) for name, tensor in message.loss_fn_inputs.items()}
    targets = tensors.pop(TARGETS)
    if not 1 <= len(tokens) <= longest:
        raise InvalidValue(f"model_input has {len(tokens)} tokens, must have 1 to {longest}")
    tensors.setdefault(WEIGHTS, np.ones(len(tokens)))
    for name in inputs:
        if name not in tensors:
            raise InvalidValue(f"loss_fn_inputs lacks {name}")
    for name, values in ((TARGETS, targets), *((name, tensors[name]) for name in inputs)):
        if len(values) != len(tokens):
            raise InvalidValue(f"{name} has {len(values)} entries, but model_input has {len(tokens)} tokens")
        if not np.isfinite(values).all():
            raise InvalidValue(f"{name} has entries that are not finite")
    for name, ids in (("model_input", tokens), (TARGETS, targets)):
        if (ids != np.floor(ids)).any():
            raise InvalidValue(f"{name} has entries that are not integers")
        check_ids(ids, vocabulary, name)
    return Datum(
        tokens.astype(np.int32),
        targets.astype(np.int32),
        {name: tensors[name].astype(np.float32) for name in inputs},
    )


def _tensor(name: str, tensor: proto.Tensor) -> npt.NDArray[Any]:
    kind = _FLOATS.get(tensor.dtype)
    if kind is None or tensor.HasField("sparse_csr") or len(tensor.shape) > 1:
        raise InvalidValue(f"{name}: must be a dense tensor of one dimension, float32, int32 or int64")
    if len(tensor.dense) % (size := np.dtype(kind).itemsize):
        raise InvalidValue(f"{name} has {len(tensor.dense)} bytes, which is not a multiple of {size}")
    return np.frombuffer(tensor.dense, kind)


def pass_output(log_probs: npt.NDArray[np.float32], lengths: Iterable[int], metrics: Mapping[str, float]) -> bytes:
    """Return a ForwardBackwardOutput. log_probs: float32, of all datums end to end. lengths: tokens of each datum."""
    output = proto.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=dict(metrics))
    ends = np.concatenate([[0], np.cumsum(list(lengths))]).astype("<i8")
    column = proto.BatchedTensor(
        data=log_probs.astype("<f4").tobytes(), offsets=(ends * 4).tobytes(), dtype=proto.DTYPE_FLOAT32
    )
    record = output.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(ends) - 1)
    record.fields["logprobs"].CopyFrom(column)
    return bytes(output.SerializeToString())


def sample_output(rollouts: Sequence[Trajectory], prompt_log_probs: npt.NDArray[np.float32] | None) -> bytes:
    """Return a SampleResponse of finished rollouts. prompt_log_probs: float32 [prompt], NaN for the first token."""
    output = proto.SampleResponse()
    for rollout in rollouts:
        stopped = rollout.stop is StopReason.STOP
        output.sequences.add(
            stop_reason=proto.STOP_REASON_STOP if stopped else proto.STOP_REASON_LENGTH,
            tokens=rollout.tokens.astype("<i4").tobytes(),
            logprobs=rollout.log_probs.astype("<f4").tobytes(),
        )
    if prompt_log_probs is not None:
        output.prompt_logprobs = prompt_log_probs.astype("<f4").tobytes()
    return bytes(output.SerializeToString())
