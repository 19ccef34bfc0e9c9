"""B10: calls of Tinker's client that are refused, each followed by a good one of the same model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.harness.attacks.attack import Answer, Attack
from tests.harness.attacks.scene import Scene

GOOD_S = 60.0


def _datum(tinker: Any, tokens: list[Any], **inputs: Any) -> Any:
    targets = {"target_tokens": tokens, "weights": [1.0] * len(tokens)} | inputs
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens), loss_fn_inputs=targets)


Bad = Callable[[Any, Any], Any]
CALLS: tuple[tuple[str, Bad], ...] = (
    ("a token outside", lambda tinker, model: model.forward_backward([_datum(tinker, [99999, 5])], "cross_entropy")),
    ("a negative token", lambda tinker, model: model.forward_backward([_datum(tinker, [-1, 5])], "cross_entropy")),
    ("a loss that is none", lambda tinker, model: model.forward_backward([_datum(tinker, [5, 6])], "nonsense")),
    (
        "weights of another length",
        lambda tinker, model: model.forward_backward([_datum(tinker, [5, 6], weights=[1.0])], "cross_entropy"),
    ),
    (
        "weights of NaN",
        lambda tinker, model: model.forward_backward(
            [_datum(tinker, [5, 6], weights=[float("nan"), 1.0])], "cross_entropy"
        ),
    ),
    ("no datum", lambda tinker, model: model.forward_backward([], "cross_entropy")),
    ("too many tokens", lambda tinker, model: model.forward_backward([_datum(tinker, [5] * 100_000)], "cross_entropy")),
    ("a learning rate of NaN", lambda tinker, model: model.optim_step(tinker.AdamParams(learning_rate=float("nan")))),
    ("a negative learning rate", lambda tinker, model: model.optim_step(tinker.AdamParams(learning_rate=-1.0))),
    ("a name of a path", lambda tinker, model: model.save_state("../../x")),
    ("a state that is none", lambda tinker, model: model.load_state("tinker://nobody/weights/x")),
)


def _drive(scene: Scene, bad: Bad) -> Answer:
    """Run in a thread: the client of the SDK blocks."""
    import tinker

    client = tinker.ServiceClient(base_url=scene.url, api_key=f"tml-{scene.token}")
    name = client.get_server_capabilities().supported_models[0].model_name
    model = client.create_lora_training_client(base_model=name).result(timeout=GOOD_S)
    try:
        bad(tinker, model).result(timeout=GOOD_S)
        fate = "taken"
    except Exception as error:  # whatever the client makes of a refusal
        fate = f"{type(error).__name__} {' '.join(str(error).split())}"[:80]
    good = model.forward_backward([_datum(tinker, [5, 6, 7])], "cross_entropy").result(timeout=GOOD_S)
    return Answer(f"{fate}; then {len(good.loss_fn_outputs)} datum passed", True)


async def refused_then_good(scene: Scene, bad: Bad) -> Answer:
    try:
        return await asyncio.to_thread(_drive, scene, bad)
    except Exception as error:  # the good call did not come back
        return Answer(f"the good call: {type(error).__name__} {error}"[:100], False)


ATTACKS: list[Attack] = [
    Attack(name, "tinker", "the next call is answered", partial(refused_then_good, bad=bad), 3 * GOOD_S)
    for name, bad in CALLS
]
