"""A generate function that does a deed at one place, as the prompt says: `<place>: <deed>`. Others answer."""

from __future__ import annotations

from typing import Any

from serve_apps.rollouts.generate.session import Session
from slime_events.plugins.sample import Sample
from tests.hostile.deeds import DEEDS

PLACES = (
    "returned", "response", "response_length", "tokens", "loss_mask", "rollout_log_probs", "status", "reward", "label",
    "metadata", "metadata value", "attribute", "spec_info", "remove_sample", "prompt", "index", "tool", "awaited tool",
    "argument", "sampling", "payload", "weight_versions", "train_metadata",
)  # fmt: skip
LARGE_PLACES = frozenset({"returned", "response", "metadata value", "attribute", "tool", "reward", "payload"})
"""Where heavy deeds are done too: each represents its kind."""
GOOD = "good"


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any], *, session: Session) -> Any:
    place, _, deed = str(sample.prompt).partition(": ")
    sample.tokens = session.tokenize(sample.prompt)
    if place == "sampling":
        await session.generate(sample.tokens, {"more": DEEDS[deed]()})
    if place == "payload":
        await session.generate(sample.tokens, None, {"more": DEEDS[deed]()})
    (await session.generate(sample.tokens, {"max_new_tokens": 4})).add_to(sample)
    if place in {"tool", "awaited tool"}:
        sample.metadata["found"] = await session.call(does if place == "tool" else awaited, {"deed": deed})
    elif place == "argument":
        await session.call(takes, {"value": DEEDS[deed]()})
    elif place == "returned":
        return DEEDS[deed]()
    elif place == "metadata value":
        sample.metadata["more"] = DEEDS[deed]()
    elif place != GOOD:
        setattr(sample, place, DEEDS[deed]())
    return sample


def does(deed: str) -> Any:
    return DEEDS[deed]()


async def awaited(deed: str) -> Any:
    return DEEDS[deed]()


def takes(value: Any) -> Any:
    return value


async def hook(args: Any, sample: Sample) -> Any:
    """A sample hook."""
    place, _, deed = str(sample.prompt).partition(": ")
    return DEEDS[deed]() if place == "hook" else sample
