"""Experts as SGLang reports them: read, checked, and left out where they are of no use."""

from __future__ import annotations

import base64
from types import SimpleNamespace

import numpy as np
import pytest

from schemas.arrays import unpack
from schemas.errors import EngineError
from schemas.rollouts import StopReason
from serve_apps.engines import messages
from serve_apps.engines.engine import Delta
from serve_apps.engines.routed_experts import ROUTED, ExpertShape, expert_shape
from tests.engine.test_host import Manager

SHAPE = ExpertShape(layers=3, each=2, count=256)
IDS = np.arange(4 * 3 * 2, dtype="<i4")


def reported(ids: object) -> str:
    return base64.b64encode(np.asarray(ids, "<i4").tobytes()).decode()


@pytest.mark.parametrize(("count", "dtype"), [(256, "uint8"), (257, "uint16")])
def test_experts_take_as_few_bytes_as_they_can(count: int, dtype: str) -> None:
    ids = [*IDS[:-1], count - 1]
    experts = ExpertShape(3, 2, count).read(reported(ids), tokens=5)
    assert (experts.ids.dtype, experts.layers, experts.each, experts.tokens) == (dtype, 3, 2, 4)
    assert unpack(experts.ids).tolist() == ids


def test_experts_after_the_end_of_a_cut_response_are_left_out() -> None:
    experts = SHAPE.read(reported(IDS), tokens=2)
    assert experts.tokens == 2
    assert unpack(experts.ids).tolist() == IDS[:12].tolist()


@pytest.mark.parametrize(
    "wrong",
    [None, 7, "no base64!", reported(IDS[:-1]), reported([*IDS[:-1], 256]), reported([*IDS[:-1], -1])],
)
def test_a_response_with_unusable_experts_goes_without(wrong: object, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EngineError):
        SHAPE.read(wrong, tokens=5)
    assert SHAPE.of_answer("r", {ROUTED: wrong}, 5) is None
    assert "response r" in capfd.readouterr().err


def test_experts_reach_the_caller() -> None:
    experts = SHAPE.read(reported(IDS), tokens=5)
    none = np.zeros(0, np.int32)
    delta = Delta(none, none.astype(np.float32), (), StopReason.STOP, "", experts=experts)
    read = messages.from_host.decode(messages._encoder.encode(messages.Piece("1", delta)))
    assert isinstance(read, messages.Piece)
    assert read.delta.experts == experts


@pytest.mark.parametrize("name", ["num_experts", "n_routed_experts", "num_local_experts"])
def test_the_shape_is_that_of_the_model(name: str) -> None:
    manager = Manager()
    sizes = {"num_hidden_layers": 3, "num_experts_per_tok": 2}
    manager.model_config = SimpleNamespace(hf_text_config=SimpleNamespace(**sizes, **{name: 256}))
    assert expert_shape(manager) is None  # type: ignore[arg-type]
    manager.server_args.enable_return_routed_experts = True
    assert expert_shape(manager) == SHAPE  # type: ignore[arg-type]
    manager.model_config = SimpleNamespace(hf_text_config=SimpleNamespace(**sizes))
    with pytest.raises(EngineError, match="no experts"):
        expert_shape(manager)  # type: ignore[arg-type]
