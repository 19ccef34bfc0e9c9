"""Bodies of the protocol: the SDK's protobuf messages and our own arrays. What this server cannot do is refused here,
with the field's name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as proto

from schemas.errors import InvalidValue
from schemas.rollouts import StopReason
from slime_events.core.datums import LOSSES, WEIGHTS, Datum
from slime_events.core.trajectory import Trajectory
from slime_events.core.vocabulary import check_ids

TARGETS = "target_tokens"
MOST_DATUMS = 65_536
"""Of a pass."""
_MODEL_ID, _SEQ_ID = b"\x0a", b"\x10"
"""Tags of the first two fields of a ForwardBackwardRequest."""
_FLOATS = {proto.DTYPE_FLOAT32: "<f4", proto.DTYPE_INT64: "<i8", proto.DTYPE_INT32: "<i4"}


class AskedPass:
    """A forward or forward_backward as it came. Raises InvalidValue for a body that is none."""

    def __init__(self, body: bytes) -> None:
        self._asked, self.size = proto.ForwardBackwardRequest(), len(body)
        try:
            self._asked.ParseFromString(body)
        except DecodeError as error:
            raise InvalidValue(f"the body is no ForwardBackwardRequest: {error}") from error
        self.model_id, self.number = self._asked.model_id, self._asked.seq_id
        self.backward = not self._asked.forward_only

    @property
    def arguments(self) -> dict[str, Any]:
        """loss_fn, and the numbers of its config that were given. Raises InvalidValue."""
        name = self._asked.loss_fn
        if name not in LOSSES:
            raise InvalidValue(f"loss_fn {name!r} is not computed here: take one of {', '.join(LOSSES)}, or "
                               "forward_backward_custom, which computes a loss of your own at the client")  # fmt: skip
        config = dict(self._asked.loss_fn_config)
        for key, value in self._asked.loss_fn_config_v2.items():
            if value.WhichOneof("value") == "text":
                raise InvalidValue(f"loss_fn_config {key!r} is a text: {name} takes numbers")
            config[key] = value.number
        if unknown := sorted(config.keys() - LOSSES[name].config.keys()):
            known = LOSSES[name].config
            raise InvalidValue(f"loss_fn_config {', '.join(unknown)}: {name} takes {', '.join(known) or 'nothing'}")
        return {"loss_fn": name, "config": config}

    def datums(self, *, vocabulary: int, longest: int) -> list[Datum]:
        """Checked: ids below `vocabulary`, at most `longest` tokens each. Raises InvalidValue with datum and field."""
        if not 1 <= len(self._asked.data) <= MOST_DATUMS:
            raise InvalidValue(f"data has {len(self._asked.data):,} datums: 1 to {MOST_DATUMS:,} are taken")
        inputs = LOSSES[self.arguments["loss_fn"]].inputs
        datums = []
        for place, one in enumerate(self._asked.data):
            try:
                datums.append(_datum(one, inputs, vocabulary, longest))
            except InvalidValue as error:
                raise InvalidValue(f"data[{place}]: {error}") from None
        return datums

    @property
    def samples(self) -> list[str]:
        """The sampled sequences that the client says its datums are made of (`Datum.with_provenance`)."""
        spans = (span for one in self._asked.data for span in (*one.model_input_spans, *one.loss_fn_input_spans))
        named = (getattr(span, span.WhichOneof("span") or "sampled_tokens").sequence_id for span in spans)
        return list(dict.fromkeys(name for name in named if name))


def call_at(begin: bytes) -> tuple[str, int] | None:
    """(model_id, seq_id) of a pass whose first bytes these are: None where they are others."""
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


def _datum(one: Any, inputs: Sequence[str], vocabulary: int, longest: int) -> Datum:
    if any(chunk.WhichOneof("chunk") != "encoded_text" for chunk in one.model_input):
        raise InvalidValue("model_input: only encoded_text is taken here, no images and no audio")
    tokens = np.frombuffer(b"".join(chunk.encoded_text.tokens for chunk in one.model_input), "<i4")
    if TARGETS not in one.loss_fn_inputs:
        raise InvalidValue(f"loss_fn_inputs lacks {TARGETS}")
    given = {name: _tensor(name, tensor) for name, tensor in one.loss_fn_inputs.items()}
    targets = given.pop(TARGETS)
    if not 1 <= len(tokens) <= longest:
        raise InvalidValue(f"model_input has {len(tokens)} tokens: 1 to {longest} are taken")
    given.setdefault(WEIGHTS, np.ones(len(tokens)))
    for name in inputs:
        if name not in given:
            raise InvalidValue(f"loss_fn_inputs lacks {name}")
    for name, values in ((TARGETS, targets), *((name, given[name]) for name in inputs)):
        if len(values) != len(tokens):
            raise InvalidValue(f"{name} has {len(values)} entries, and model_input {len(tokens)} tokens")
        if not np.isfinite(values).all():
            raise InvalidValue(f"{name} has entries that are no numbers")
    for name, ids in (("model_input", tokens), (TARGETS, targets)):
        if (ids != np.floor(ids)).any():
            raise InvalidValue(f"{name} has entries that are no whole numbers")
        check_ids(ids, vocabulary, name)
    return Datum(
        tokens.astype(np.int32),
        targets.astype(np.int32),
        {name: given[name].astype(np.float32) for name in inputs},
    )


def _tensor(name: str, tensor: Any) -> npt.NDArray[Any]:
    kind = _FLOATS.get(tensor.dtype)
    if kind is None or tensor.HasField("sparse_csr") or len(tensor.shape) > 1:
        raise InvalidValue(f"{name}: a dense tensor of one dimension, float32 or int64, is taken here")
    if len(tensor.dense) % np.dtype(kind).itemsize:
        raise InvalidValue(f"{name} has {len(tensor.dense)} bytes, which is no whole number of entries")
    return np.frombuffer(tensor.dense, kind)


def pass_output(log_probs: npt.NDArray[np.float32], lengths: Iterable[int], metrics: Mapping[str, float]) -> bytes:
    """A ForwardBackwardOutput. log_probs: of all datums end to end; lengths: of each."""
    output = proto.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=dict(metrics))
    ends = np.concatenate([[0], np.cumsum(list(lengths))]).astype("<i8")
    column = proto.BatchedTensor(
        data=log_probs.astype("<f4").tobytes(), offsets=(ends * 4).tobytes(), dtype=proto.DTYPE_FLOAT32
    )
    record = output.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(ends) - 1)
    record.fields["logprobs"].CopyFrom(column)
    return bytes(output.SerializeToString())


def sample_output(made: Sequence[Trajectory], prompt_log_probs: npt.NDArray[np.float32] | None) -> bytes:
    """A SampleResponse of finished rollouts, in their order. prompt_log_probs: float32 [prompt], NaN for the first."""
    output = proto.SampleResponse()
    for one in made:
        stopped = one.stop is StopReason.STOP
        output.sequences.add(
            stop_reason=proto.STOP_REASON_STOP if stopped else proto.STOP_REASON_LENGTH,
            tokens=one.tokens.astype("<i4").tobytes(),
            logprobs=one.log_probs.astype("<f4").tobytes(),
        )
    if prompt_log_probs is not None:
        output.prompt_logprobs = prompt_log_probs.astype("<f4").tobytes()
    return bytes(output.SerializeToString())
