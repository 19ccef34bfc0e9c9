"""A recorded run for what the pages ask of one: sums that a model has answered, right and wrong, as it writes them.

Twelve steps, each of three groups of four answers: one of mixed answers, one of right ones alone, and one that another
run has recorded. Beside them groups that the filter refused, from a file whose labels are wrong, and one never solved.
"""

from __future__ import annotations

from collections.abc import Iterator

from schemas.arrays import pack_log_probs, pack_tokens, unpack
from schemas.event import Event
from schemas.ids import sample_id
from schemas.prompts import Source
from schemas.rollouts import Origin, Timings, WeightSpan
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.tokens.trajectory import content_digest
from tests import made
from tests.rescore.recorded import settings

RUN, STEPS, SAMPLES = "recorded", 12, 4
MIXED, EASY, NEVER = (True, False, True, True), (True,) * SAMPLES, (False,) * SAMPLES


def run_settings() -> TrainSettings:
    """Return the settings of a run with three groups of four samples a step."""
    return settings()


async def recorded_run() -> OpenedRun:
    """It, opened."""
    log = await made.log(*events(), run=RUN, at=1_700_000_000_000_000_000, apart=10**8)
    return made.opened(log, run_settings(), RUN)


def events() -> Iterator[Event]:
    """Return the events of the log."""
    yield made.started(code_version="0.1.0")
    yield from _weights(0)
    for step in range(STEPS):
        groups = [
            Answered(f"train-0-{step:06d}", f"{step}+7", str(step + 7), MIXED, step, row=step),
            Answered(f"train-1-{step:06d}", f"{step}+1", str(step + 1), EASY, step, row=step, epoch=1),
            Answered(f"again-{step:06d}", f"{step}+2", str(step + 2), MIXED, step, row=step, recalled=True),
        ]
        for group in groups:
            yield from group.events()
        yield from Answered(f"inbox-{step:06d}", f"{step}+9", "-1", NEVER, step, row=0, inbox=True).events()
        yield from _step(step, groups)
    yield from Answered("train-0-000099", "9+9", "18", NEVER, STEPS, row=99).events()
    yield made.evaluated(STEPS, mean=0.75, samples=4, mean_length=9.0)


class Answered:
    """A group with its answers. right: which of them are."""

    def __init__(
        self, name: str, sum_: str, label: str, right: tuple[bool, ...], version: int, *, row: int, epoch: int = 0,
        inbox: bool = False, recalled: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.sum, self.label, self.right, self.version = name, sum_, label, right, version
        self.inbox, self.recalled = inbox, recalled
        path = "inbox" if inbox else "archive/demo" if recalled else "train.jsonl"
        self.source = Source(path=path, row=row, epoch=epoch, line=row + 1, key=name if inbox or recalled else "")
        self.samples = tuple(sample_id(name, index) for index in range(SAMPLES))
        self.rewards = tuple(float(flag) for flag in right)
        self.prompt = f"<|im_start|>user\n{sum_}<|im_end|>\n<|im_start|>assistant\n"

    def events(self) -> Iterator[Event]:
        """Prompt, rollouts, rewards and the verdict."""
        metadata = {"file": "contractor.jsonl", "site": "forum"} if self.inbox else {"site": "textbook"}
        yield made.submitted(
            self.name, text=self.prompt, tokens=_tokens(self.prompt), source=self.source, label=self.label,
            messages=[{"role": "user", "content": self.sum}], dataset="inbox" if self.inbox else "train",
            metadata=metadata,
        )  # fmt: skip
        for index in range(SAMPLES):
            yield from self._rollout(index)
        verdict = {"group": self.name, "samples": self.samples, "rewards": self.rewards, "filter": "solved"}
        if not any(self.right):
            yield made.rejected(**verdict, reason="zero_std_0.0", figures={"mean": 0.0})
        else:
            yield made.accepted(**verdict, figures={"mean": sum(self.rewards) / SAMPLES})

    def _rollout(self, index: int) -> Iterator[Event]:
        sample = self.samples[index]
        answer = str(eval(self.sum)) if self.right[index] or self.inbox else str(eval(self.sum) + 1)
        text = f"<think>{self.sum}={answer}</think>{answer}<|im_end|>"
        tokens = _tokens(text)
        log_probs = pack_log_probs([-0.25] * tokens.n)
        older = max(self.version - 1, 0) if index else self.version
        spans = (WeightSpan(0, 3, older), WeightSpan(3, tokens.n, self.version))
        spans = spans if older < self.version else (WeightSpan(0, tokens.n, self.version),)
        yield made.requested(
            sample, group=self.name, index=index, prompt=_tokens(self.prompt), seed=index, max_new_tokens=40,
            min_version=older,
        )  # fmt: skip
        yield made.completed(
            sample, tokens, group=self.name, length=tokens.n, prompt_length=_tokens(self.prompt).n, text=text,
            spans=spans, digest=content_digest(unpack(tokens), unpack(log_probs)), engine="engine-1",
            log_probs=log_probs, timings=Timings(queued=0.1, generating=0.5),
            origin=Origin("demo", sample, 7, spans) if self.recalled else None,
        )  # fmt: skip
        yield made.assigned(
            sample, group=self.name, value=self.rewards[index], grader="exact", grader_digest="d", seconds=0.001
        )


def _tokens(text: str):
    return pack_tokens([ord(letter) for letter in text])


def _step(step: int, groups: list[Answered]) -> Iterator[Event]:
    rewards = tuple(reward for group in groups for reward in group.rewards)
    yield made.sealed(
        step, groups=tuple(group.name for group in groups), raw_rewards=rewards, oldest_version=max(step - 1, 0),
        samples=tuple(sample for group in groups for sample in group.samples), digest=f"b{step}",
        rewards=tuple(reward - 0.5 for reward in rewards),
    )  # fmt: skip
    metrics = {"loss": 0.5, "grad_norm": 1.0, "recalled_share": 1 / 3, "recalled_tis": 1.0, "recalled_tis_max": 1.1}
    yield made.committed(
        step, batch_digest=f"b{step}", samples=len(rewards), tokens=24, metrics=metrics, seconds={"train": 0.3},
    )  # fmt: skip
    yield from _weights(step + 1)


def _weights(version: int) -> Iterator[Event]:
    yield made.published(version, parent=version - 1 if version else None, url="w", bytes=9)
    yield made.activated(version, engine="engine-1", lag=0.2)
