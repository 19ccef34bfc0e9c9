"""`Measures`: the real time and bytes that a simulated run costs: events by kind, folds, cycles, snapshots."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from schemas.arrays import Array, pack_log_probs, pack_tokens
from schemas.codec import decode, encode
from schemas.doc import doc
from schemas.envelope import enclose
from schemas.event import Event
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutProgressed
from slime_events.core.state.partial_events import PARTIAL_EVENTS, Completed, Rewarded
from slime_events.core.state.run import RunState
from slime_events.core.state.snapshot import encode_snapshot, pack

EVERY = 1_000
"""Events of a kind for each one that is encoded and decoded whole; the first is."""
RUN = "scale"
_PROGRESSED = PARTIAL_EVENTS[RolloutProgressed]
NAMES = {_PROGRESSED: "rollout.progressed", Completed: "rollout.completed", Rewarded: "reward.assigned"}
_tokens = np.random.default_rng(0).integers(0, 150_000, 32_768)
_log_probs = -np.random.default_rng(1).random(32_768, np.float32)


class Snapshotted(msgspec.Struct, frozen=True):
    """One snapshot."""

    plain: Annotated[int, doc("bytes of the state")]
    stored: Annotated[int, doc("bytes of the file")]
    encoding: Annotated[float, doc("time in which the conductor does nothing else [s]")]
    storing: Annotated[float, doc("time of a thread, without the write [s]")]


class Measures:
    """Figures of one simulated run."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.appends = 0
        self.folding = 0.0
        self.cycles: list[float] = []
        self.sealing: list[float] = []
        self.snapshots: list[Snapshotted] = []
        self.sizes: defaultdict[str, list[int]] = defaultdict(list)
        self.encoding: defaultdict[str, list[float]] = defaultdict(list)
        self.decoding: defaultdict[str, list[float]] = defaultdict(list)

    def folded(self, events: Sequence[Any], seconds: float, prompt: int) -> None:
        """Count events that were folded in one call. prompt: length of prompts [tokens]."""
        self.folding += seconds
        self.appends += 1
        for event in events:
            kind = _name(event)
            self.events[kind] += 1
            if self.events[kind] % EVERY == 1:
                self._measure(kind, whole(event, prompt))

    def _measure(self, kind: str, event: Event) -> None:
        begun = time.perf_counter()
        data = encode(enclose(RUN, event, at=1, producer="scale"))
        encoded = time.perf_counter()
        decode(data)
        hashlib.sha256(bytes(32) + data).hexdigest()
        self.sizes[kind].append(len(data))
        self.encoding[kind].append(encoded - begun)
        self.decoding[kind].append(time.perf_counter() - encoded)

    def snapshot(self, state: RunState) -> None:
        """Measure a snapshot of the state."""
        begun = time.perf_counter()
        encoded = encode_snapshot(state, "")
        between = time.perf_counter()
        stored = len(pack(encoded))
        self.snapshots.append(Snapshotted(len(encoded), stored, between - begun, time.perf_counter() - between))


def _name(event: Any) -> str:
    return NAMES.get(type(event)) or str(type(event).__struct_config__.tag)


def whole(event: Any, prompt: int) -> Event:
    """Return the event as it would be in the log, with random tokens in place of the lengths of arrays."""
    if type(event) is _PROGRESSED:
        many = event.tokens.n
        return RolloutProgressed(
            sample=event.sample, attempt=0, start=event.start, tokens=pack_tokens(_tokens[:many]),
            log_probs=pack_log_probs(_log_probs[:many]), spans=event.spans, engine=event.engine,
        )  # fmt: skip
    if type(event) is Completed:
        many = event.length - event.spans[-1].start  # the rest is in chunks
        return RolloutCompleted(
            sample=event.sample, group=event.group, attempt=0, start=event.length - many, length=event.length,
            prompt_length=prompt, stop=event.stop, text="word " * (event.length * 3 // 4), spans=event.spans,
            digest=hashlib.sha256(event.digest.encode()).hexdigest(), engine="engine-00000",
            tokens=pack_tokens(_tokens[:many]), log_probs=pack_log_probs(_log_probs[:many]),
        )  # fmt: skip
    if type(event) is Rewarded:
        return RewardAssigned(
            sample=event.sample, group=event.group, value=event.value, grader="math", grader_digest="", seconds=0.5
        )
    filled = {
        name: pack_tokens(_tokens[: value.n])
        for name in event.__struct_fields__
        if isinstance(value := getattr(event, name), Array) and value.n == prompt
    }
    changed: Event = msgspec.structs.replace(event, **filled)
    return changed
