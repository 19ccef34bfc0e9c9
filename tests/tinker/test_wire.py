"""Bodies of passes and answers: what a client's datums become, what is refused with its place, and what the
answers hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.arrays import EMPTY_TOKENS
from schemas.errors import InvalidValue
from schemas.rollouts import StopReason
from serve_apps.http.tinker import wire
from serve_apps.http.tinker.wire import PassRequest, call_at, pass_output, proto, sample_output
from slime_events.core.tokens.trajectory import Trajectory

VOCABULARY, LONGEST = 16, 4


def floats(*values: float) -> Any:
    return proto.Tensor(dtype=proto.DTYPE_FLOAT32, dense=np.array(values, "<f4").tobytes(), shape=[len(values)])


def longs(*values: int) -> Any:
    return proto.Tensor(dtype=proto.DTYPE_INT64, dense=np.array(values, "<i8").tobytes(), shape=[len(values)])


def text(*tokens: int) -> Any:
    return proto.Chunk(encoded_text=proto.EncodedTextChunk(tokens=np.array(tokens, "<i4").tobytes()))


def pass_request(loss: str = "cross_entropy", datums: list[Any] | None = None, **more: Any) -> PassRequest:
    request = proto.ForwardBackwardRequest(model_id="m:train:0", seq_id=3, loss_fn=loss, **more)
    request.data.extend(datums or [])
    return PassRequest(request.SerializeToString())


def datum(chunks: list[Any], **inputs: Any) -> Any:
    return proto.Datum(model_input=chunks, loss_fn_inputs=inputs)


def read(*datums: Any, loss: str = "cross_entropy") -> Any:
    return pass_request(loss, list(datums)).datums(vocabulary=VOCABULARY, longest=LONGEST)


def refused(*datums: Any, loss: str = "cross_entropy") -> str:
    with pytest.raises(InvalidValue) as error:
        read(*datums, loss=loss)
    return str(error.value)


GOOD = datum([text(1, 2)], target_tokens=longs(2, 3))


def test_a_pass_says_whose_it_is_and_whether_it_goes_back() -> None:
    forward, both = pass_request(forward_only=True), pass_request()
    assert (both.model_id, both.number, both.backward, forward.backward) == ("m:train:0", 3, True, False)
    assert both.size > 0
    with pytest.raises(InvalidValue):
        PassRequest(b"\xff")


def test_numbers_of_a_loss_are_those_that_were_given() -> None:
    second = proto.LossConfigValue(number=1.5)
    request = pass_request(
        "ppo", loss_fn_config={"clip_low_threshold": 0.5}, loss_fn_config_v2={"clip_high_threshold": second}
    )
    assert request.arguments["loss_fn"] == "ppo"
    assert request.arguments["config"] == {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5}
    assert pass_request("dro").arguments == {"loss_fn": "dro", "config": {}}
    wrong = {"clip_low_threshold": proto.LossConfigValue(text="low")}
    for call in (
        pass_request("gspo"),
        pass_request("ppo", loss_fn_config_v2=wrong),
        pass_request("ppo", loss_fn_config={"beta": 1.0}),
    ):
        with pytest.raises(InvalidValue):
            _ = call.arguments


def test_datums_have_their_tokens_targets_and_inputs() -> None:
    inputs = {"target_tokens": longs(2, 3), "logprobs": floats(-0.5, -1.0), "advantages": floats(1.0, -1.0)}
    (datum_,) = read(datum([text(1), text(2)], **inputs), loss="importance_sampling")
    assert (datum_.tokens.tolist(), datum_.targets.tolist()) == ([1, 2], [2, 3])
    assert {name: values.tolist() for name, values in datum_.inputs.items()} == {
        "logprobs": [-0.5, -1.0],
        "advantages": [1.0, -1.0],
    }
    assert (datum_.tokens.dtype, datum_.targets.dtype, datum_.inputs["logprobs"].dtype) == (
        np.int32,
        np.int32,
        np.float32,
    )
    (plain,) = read(GOOD)
    assert plain.inputs["weights"].tolist() == [1.0, 1.0], "each target counts where nothing says how much"


def test_a_datum_is_refused_with_its_place() -> None:
    for wrong in (
        datum([text(1, 2)]),
        datum([], target_tokens=longs()),
        datum([text(1, 2, 3, 4, 5)], target_tokens=longs(1, 2, 3, 4, 5)),
        datum([proto.Chunk()], target_tokens=longs(1)),
        datum([text(1, 2), proto.Chunk(image=proto.ImageChunk())], target_tokens=longs(1, 2)),
        datum([text(1, 2)], target_tokens=longs(1)),
        datum([text(1, 2)], target_tokens=longs(1, 2), weights=floats(1.0)),
        datum([text(1, 2)], target_tokens=longs(1, 2), weights=floats(1.0, float("nan"))),
        datum([text(1, 2)], target_tokens=longs(1, VOCABULARY)),
        datum([text(1, VOCABULARY)], target_tokens=longs(1, 2)),
        datum([text(1, 2)], target_tokens=floats(1.0, 2.5)),
        datum([text(1, 2)], target_tokens=floats(1.0, float("inf"))),
    ):
        assert refused(GOOD, wrong).startswith("data[1]: ")
    lacks = datum([text(1)], target_tokens=longs(2), logprobs=floats(-1.0))
    assert refused(lacks, loss="ppo").startswith("data[0]: ")


def test_the_longest_datum_and_the_last_token_are_taken() -> None:
    (datum_,) = read(datum([text(1, 2, 3, VOCABULARY - 1)], target_tokens=longs(2, 3, 4, VOCABULARY - 1)))
    assert len(datum_.tokens) == LONGEST
    (single,) = read(datum([text(0)], target_tokens=floats(5.0)))
    assert single.targets.tolist() == [5]


def test_a_pass_has_so_many_datums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_DATUMS", 2)
    assert refused()
    assert len(read(GOOD)) == 1
    assert len(read(GOOD, GOOD)) == 2
    assert "data[" not in refused(GOOD, GOOD, GOOD)


@pytest.mark.parametrize("kind", [proto.DTYPE_INT32, proto.DTYPE_INT64, proto.DTYPE_FLOAT32])
def test_tensors_come_in_three_types(kind: int) -> None:
    of_kind = {proto.DTYPE_INT32: "<i4", proto.DTYPE_INT64: "<i8", proto.DTYPE_FLOAT32: "<f4"}[kind]
    tensor = proto.Tensor(dtype=kind, dense=np.array([7], of_kind).tobytes(), shape=[1])
    assert read(datum([text(1)], target_tokens=tensor))[0].targets.tolist() == [7]


def test_what_is_no_dense_row_is_refused() -> None:
    dense = np.array([1.0], "<f4").tobytes()
    for wrong in (
        proto.Tensor(dtype=99, dense=dense),
        proto.Tensor(dtype=proto.DTYPE_FLOAT32, dense=dense, shape=[1, 1]),
        proto.Tensor(dtype=proto.DTYPE_FLOAT32, dense=dense + b"\0", shape=[1]),
        proto.Tensor(dtype=proto.DTYPE_FLOAT32, dense=dense, sparse_csr=proto.SparseCsr()),
    ):
        assert refused(datum([text(1)], target_tokens=longs(1), weights=wrong))
    bare = proto.Tensor(dtype=proto.DTYPE_FLOAT32, dense=dense)
    assert read(datum([text(1)], target_tokens=longs(1), weights=bare))[0].inputs["weights"].tolist() == [1.0]


def test_named_samples_are_each_named_once() -> None:
    span = proto.ProvenanceSpan(sampled_tokens=proto.SampledProvenanceSpan(sequence_id="s1"))
    other = proto.ProvenanceSpan(sampled_tokens=proto.SampledProvenanceSpan(sequence_id="s2"))
    datum_ = proto.Datum(model_input_spans=[span, proto.ProvenanceSpan()], loss_fn_input_spans=[other, span])
    assert pass_request(datums=[datum_, datum_]).samples == ["s1", "s2"]
    assert pass_request(datums=[GOOD]).samples == []


NAMES = st.text(st.characters(codec="ascii"), min_size=1, max_size=127)


@settings(max_examples=30)
@given(NAMES, st.integers(1, 2**31 - 1), st.integers(0, 200))
def test_a_call_is_found_in_the_first_bytes_or_not_at_all(name: str, number: int, length: int) -> None:
    whole = proto.ForwardBackwardRequest(model_id=name, seq_id=number, loss_fn="x").SerializeToString()
    head = proto.ForwardBackwardRequest(model_id=name, seq_id=number).SerializeToString()
    assert call_at(whole) == (name, number)
    assert call_at(whole[:length]) == ((name, number) if length >= len(head) else None)


@pytest.mark.parametrize("begin", [b"", b"\x0a", b"\x0a\x80", b"\x0a\x01a", b"\x12\x01a\x10\x01", b"\x0a\x01a\x18\x01"])
def test_what_begins_otherwise_has_no_number(begin: bytes) -> None:
    assert call_at(begin) is None


def test_a_long_name_or_number_is_not_read() -> None:
    long = proto.ForwardBackwardRequest(model_id="m" * 127 + "\x10", seq_id=1).SerializeToString()
    assert call_at(long) is None
    assert call_at(b"\x0a\x80" + b"m" * 128 + b"\x10\x01") is None, "its length continues"
    assert call_at(b"\x0a\x01a\x10" + b"\x80" * 10 + b"\x01") is None
    assert call_at(b"\x0a\x01a\x10" + b"\x80" * 9 + b"\x01") == ("a", 1 << 63)


def test_a_pass_says_the_log_probs_of_each_datum() -> None:
    output = proto.ForwardBackwardOutput()
    output.ParseFromString(pass_output(np.array([-1, -2, -3], np.float32), [2, 1], {"loss": 0.5}))
    (record,) = output.loss_fn_outputs
    column = record.fields["logprobs"]
    assert (output.loss_fn_output_type, record.type_tag, record.num_datums) == ("ArrayRecord", "ArrayRecord", 2)
    assert np.frombuffer(column.data, "<f4").tolist() == [-1, -2, -3]
    assert np.frombuffer(column.offsets, "<i8").tolist() == [0, 8, 12]
    assert (column.dtype, dict(output.metrics)) == (proto.DTYPE_FLOAT32, {"loss": 0.5})


def sampled(stop: StopReason, *tokens: int) -> Trajectory:
    trajectory = Trajectory("s", EMPTY_TOKENS, stop=stop)
    trajectory._tokens.add(np.array(tokens, np.int32))
    trajectory._log_probs.add(np.full(len(tokens), -0.5, np.float32))
    return trajectory


def test_samples_say_their_tokens_and_how_they_ended() -> None:
    output = proto.SampleResponse()
    output.ParseFromString(sample_output([sampled(StopReason.STOP, 1, 2), sampled(StopReason.LENGTH, 3)], None))
    assert [np.frombuffer(sequence.tokens, "<i4").tolist() for sequence in output.sequences] == [[1, 2], [3]]
    assert [np.frombuffer(sequence.logprobs, "<f4").tolist() for sequence in output.sequences] == [[-0.5, -0.5], [-0.5]]
    assert [sequence.stop_reason for sequence in output.sequences] == [proto.STOP_REASON_STOP, proto.STOP_REASON_LENGTH]
    assert output.prompt_logprobs == b""
    output.ParseFromString(sample_output([], np.array([np.nan, -1], np.float32)))
    assert np.frombuffer(output.prompt_logprobs, "<f4")[1:].tolist() == [-1]
