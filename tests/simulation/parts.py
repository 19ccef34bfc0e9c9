"""Replace a tokenizer, a grader pool, Megatron's ranks and a network that can be cut."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from actors.trainer.ranks import HeldWeights
from schemas.errors import CheckpointMismatch, LogUnavailable
from slime_events.core.training.save_progress import SaveProgress, SaveState
from slime_events.core.training.train_batch import StepResult, TrainBatch
from slime_events.plugins.rewards.outcome import Graded, Outcome
from slime_events.plugins.sample import Sample
from storage.log import Append, Consumer, Delivery, EventLog, ForeignRecord, Recorded, Subjects
from storage.weights.files import open_checkpoint
from storage.weights.shards import TensorBytes
from tests.scripted_engine import ScriptedDevice


class Letters:
    """A tokenizer: a letter is its code point."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int], **kwargs: Any) -> str:
        return "".join(map(chr, tokens))

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **kwargs: Any) -> str:
        return "".join(f"<{message['role']}>{message['content']}" for message in conversation)


def by_text(sample: Sample) -> float:
    """A reward between 0 and 1 that follows from the response alone."""
    return hashlib.sha256(sample.response.encode()).digest()[0] / 255


class InstantPool:
    """A grader pool without processes."""

    def __init__(self, grader: Callable[[Sample], Outcome | float] = by_text) -> None:
        self._grader = grader
        self.graded: list[str | None] = []
        self.group_sizes: list[int] = []

    async def grade(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
        await asyncio.sleep(0)
        self.graded += [sample.session_id for sample in samples]
        outcomes = map(self._grader, samples)
        return [
            outcome if isinstance(outcome, Outcome) else Graded(value=outcome, grader="test") for outcome in outcomes
        ]

    async def grade_group(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
        self.group_sizes.append(len(samples))
        return await self.grade(samples, evaluation=evaluation)


class ScriptedRanks(HeldWeights):
    """Weights are a digest over the parent's and every token of the batch in order. disk: checkpoints by folder."""

    def __init__(self, seconds: float = 0.0, disk: dict[str, bytes] | None = None) -> None:
        self.weights = b"\0" * 32
        self.trained: list[TrainBatch] = []
        self.saved: list[str] = []
        self.disk = {} if disk is None else disk
        self.scheduled = 0
        self._seconds = seconds
        self.device, self._rests = ScriptedDevice(), False

    async def rest(self) -> None:
        self.device.leave(self)
        self._rests = True

    async def wake(self) -> None:
        self.device.enter(self)
        self._rests = False

    async def train(self, batch: TrainBatch) -> StepResult:
        assert not self._rests, "resting ranks got a call to train"
        await asyncio.sleep(self._seconds)
        digest = hashlib.sha256(self.weights)
        for sample in batch.samples:
            digest.update(f"{sample.sample}{sample.reward!r}".encode())
            digest.update(sample.tokens.tobytes() + sample.rollout_log_probs.tobytes())
        self.weights = digest.digest()
        self.trained.append(batch)
        return StepResult({"loss": self.weights[0] / 255}, self.weights.hex())

    async def export_weights(self) -> list[TensorBytes]:
        assert not self._rests, "ranks that rest were asked for their weights"
        return [("w", "F32", (8,), self.weights)]

    async def optimizer_digest(self) -> str:
        return self.weights.hex()

    async def critic_digest(self) -> str:
        return ""

    async def save_checkpoint(self, folder: str) -> None:
        self.saved.append(folder)
        self.disk[folder] = self.weights

    async def begin_checkpoint(self, folder: str) -> None:
        await self.save_checkpoint(folder)

    async def finish_checkpoint(self, *, wait: bool) -> SaveProgress:
        return SaveProgress(SaveState.SAVED)

    async def load_checkpoint(self, folder: str) -> None:
        self.weights = b"torn"
        if folder not in self.disk:
            raise CheckpointMismatch(f"{folder} is not there")
        self.weights = self.disk[folder]

    async def load_weights(self, folder: str) -> None:
        self.weights = bytes(open_checkpoint(folder)["w"].data)

    async def advance_schedule(self, optimizer_steps: int) -> None:
        self.scheduled += optimizer_steps

    async def reset(self) -> None:
        self.weights = b"\0" * 32


class CriticRanks(ScriptedRanks):
    """Train a critic too, which is a digest of its own over every batch; its first steps leave the weights alone."""

    critic_only = 2

    def __init__(self, seconds: float = 0.0, disk: dict[str, bytes] | None = None) -> None:
        super().__init__(seconds, disk)
        self.critic = b"new"

    async def train(self, batch: TrainBatch) -> StepResult:
        before = self.weights
        result = await super().train(batch)
        self.critic = hashlib.sha256(self.critic + self.weights).digest()
        if batch.step < self.critic_only:
            self.weights = before
        return StepResult(result.metrics, self.weights.hex(), critic_digest=await self.critic_digest())

    async def critic_digest(self) -> str:
        return self.critic.hex()

    async def save_checkpoint(self, folder: str) -> None:
        await super().save_checkpoint(folder)
        self.disk[folder] += self.critic

    async def load_checkpoint(self, folder: str) -> None:
        await super().load_checkpoint(folder)
        self.weights, self.critic = self.weights[:32], self.weights[32:]

    async def reset(self) -> None:
        await super().reset()
        self.critic = b"new"


class NoisyRanks(ScriptedRanks):
    """Add noise to each step that was trained before, as a GPU may. Moments follow from every batch, weights move by a
    little that follows from the moments. disk: outlives processes, and knows what was trained.
    """

    def __init__(self, seconds: float = 0.0, disk: dict[str, bytes] | None = None) -> None:
        super().__init__(seconds, disk)
        self.moments = b""

    async def train(self, batch: TrainBatch) -> StepResult:
        before, times = self.weights, len(self.disk.setdefault(f"trained {batch.step}", b""))
        self.disk[f"trained {batch.step}"] += b"."
        result = await super().train(batch)
        self.moments = hashlib.sha256(self.moments + f"{batch.step} {times}".encode()).digest()
        moved = np.frombuffer(self.moments, "<u4") / 2**32 * 1e-3
        self.weights = (np.frombuffer(before, "<f4") + moved).astype("<f4").tobytes()
        return StepResult(result.metrics, await self.optimizer_digest())

    async def optimizer_digest(self) -> str:
        return hashlib.sha256(self.moments).hexdigest()

    async def save_checkpoint(self, folder: str) -> None:
        await super().save_checkpoint(folder)
        self.disk[folder] += self.moments

    async def load_checkpoint(self, folder: str) -> None:
        await super().load_checkpoint(folder)
        self.weights, self.moments = self.weights[:32], self.weights[32:]

    async def reset(self) -> None:
        await super().reset()
        self.moments = b""


@dataclass(eq=False)
class Line:
    """One process's way to the log. cut: nothing gets through any more. deaf: its leases are not renewed. copies: times
    that each request is handed out, as by a server that was killed and has forgotten the first.
    """

    log: EventLog
    is_cut: bool = False
    is_deaf: bool = False
    copies: int = 1
    taken: list[str] = field(default_factory=list)
    acked: list[str] = field(default_factory=list)

    @property
    def run(self) -> str:
        return self.log.run

    def _check(self) -> None:
        if self.is_cut:
            raise LogUnavailable("the process is gone")

    async def append(self, appends: Sequence[Append]) -> list[int]:
        self._check()
        return await self.log.append(appends)

    async def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        async for recorded in self.log.read(start, subject, follow=follow):
            self._check()
            yield recorded

    async def read_records(
        self, start: int = 1, *, follow: bool = False
    ) -> AsyncGenerator[Recorded | ForeignRecord, None]:
        async for record in self.log.read_records(start, follow=follow):
            self._check()
            yield record

    async def last(self, subject: str) -> Recorded | None:
        self._check()
        return await self.log.last(subject)

    async def last_of_each(self, subjects: Sequence[str]) -> dict[str, Recorded]:
        self._check()
        return await self.log.last_of_each(subjects)

    async def subjects(self, pattern: str, start: int = 1) -> list[str]:
        self._check()
        return await self.log.subjects(pattern, start)

    async def position(self) -> int:
        self._check()
        return await self.log.position()

    async def end(self) -> int:
        self._check()
        return await self.log.end()

    async def consume(self, name: str, subject: str, *, lease_s: float = 30.0, start: int = 1) -> Consumer:
        self._check()
        return LineConsumer(self, await self.log.consume(name, subject, lease_s=lease_s, start=start))

    async def done_up_to(self, name: str) -> int:
        self._check()
        return await self.log.done_up_to(name)

    async def notify(self, listener: str, events: Sequence[Recorded], *, early: bool = False) -> None:
        if not self.is_cut:
            await self.log.notify(listener, events, early=early)

    def listen(
        self, name: str, on_event: Callable[[Recorded], None], *, early: bool = False
    ) -> AbstractAsyncContextManager[None]:
        return self.log.listen(name, lambda recorded: None if self.is_cut else on_event(recorded), early=early)

    async def close(self) -> None:
        return


@dataclass
class LineConsumer:
    line: Line
    inner: Consumer

    async def take(self, limit: int, wait_s: float) -> list[Delivery]:
        if self.line.is_cut:
            await asyncio.sleep(wait_s)
            return []
        taken = await self.inner.take(limit, wait_s)
        self.line.taken += [delivery.recorded.envelope.event.entity() for delivery in taken]
        return [LineDelivery(self.line, delivery) for delivery in taken for _ in range(self.line.copies)]

    async def close(self) -> None:
        await self.inner.close()


@dataclass
class LineDelivery:
    line: Line
    inner: Delivery

    @property
    def recorded(self) -> Recorded:
        return self.inner.recorded

    @property
    def attempt(self) -> int:
        return self.inner.attempt

    async def working(self) -> None:
        if not (self.line.is_cut or self.line.is_deaf):
            await self.inner.working()

    async def done(self) -> None:
        if not self.line.is_cut:
            self.line.acked.append(self.recorded.envelope.event.entity())
            await self.inner.done()

    async def release(self) -> None:
        if not self.line.is_cut:
            await self.inner.release()
