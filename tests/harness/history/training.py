"""`Training`: batches name accepted groups once, steps commit them once, weights are a chain from the first on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from tests.harness.history.finding import Finding, Kind
from tests.harness.history.record import Record
from tests.harness.history.story import Story


class Training:
    """Batches, steps, weight versions and checkpoints."""

    def __init__(self, story: Story) -> None:
        self._story = story

    def apply(self, record: Record) -> Iterator[Finding]:
        """Look at a record."""
        handlers = {
            "batch.sealed": self._sealed,
            "step.committed": self._committed,
            "weights.published": self._published,
            "weights.stored": self._stored,
            "weights.activated": self._weights_used,
            "checkpoint.saved": self._checkpoint,
            "trainer.restored": self._restored,
        }
        handler = handlers.get(record.type)
        if handler is not None:
            yield from handler(record)

    def _sealed(self, record: Record) -> Iterator[Finding]:
        story, event, step = self._story, record.event, record.event["step"]
        following = story.first + len(story.batches)
        if step != following:
            yield Finding(Kind.WRONG_BATCH, record.position, f"batch {step} was sealed, {following} is next")
        if story.follows:
            yield from self._learned(record)
            story.batches[step] = (list(event["samples"]), event["digest"])
            return
        for name in event["groups"]:
            group = story.groups.get(name)
            if group is None or group.verdict != "accepted":
                yield Finding(Kind.NOT_ACCEPTED, record.position, f"batch {step} names {name}, which was not accepted")
            elif group.step is not None:
                yield Finding(Kind.TRAINED_TWICE, record.position, f"batch {step} names {name}, as {group.step} does")
            else:
                group.step = step
        yield from self._content(record)
        story.batches[step] = (list(event["samples"]), event["digest"])

    def _learned(self, record: Record) -> Iterator[Finding]:
        """A batch of rollouts that another run made: they are whole there, and no other batch of this one has them."""
        story, event, step = self._story, record.event, record.event["step"]
        for name in event["samples"]:
            sample = story.samples.get(name)
            if sample is None or not sample.completed or sample.group not in event["groups"]:
                yield Finding(Kind.NOT_ACCEPTED, record.position, f"batch {step} names {name}, which nobody completed")
                return
            if story.learned.setdefault(name, step) != step:
                yield Finding(Kind.TRAINED_TWICE, record.position, f"batch {step} names {name}, as another does")
        digest = batch_digest(event, [story.samples[name].digest for name in event["samples"]])
        if digest != event["digest"]:
            yield Finding(Kind.WRONG_DIGEST, record.position, f"batch {step} says {event['digest']}, it is {digest}")

    def _content(self, record: Record) -> Iterator[Finding]:
        story, event, step = self._story, record.event, record.event["step"]
        groups = [story.groups[name] for name in event["groups"] if name in story.groups]
        samples, raw = list(event["samples"]), list(event["raw_rewards"])
        if samples != [sample for g in groups for sample in g.samples] or raw != [r for g in groups for r in g.rewards]:
            yield Finding(
                Kind.WRONG_BATCH, record.position, f"batch {step} does not hold its groups' samples and rewards"
            )
            return
        digest = batch_digest(event, [story.samples[name].digest for name in samples])
        if digest != event["digest"]:
            yield Finding(Kind.WRONG_DIGEST, record.position, f"batch {step} says {event['digest']}, it is {digest}")
        oldest = [story.samples[name].oldest for name in samples]
        if None not in oldest and min(oldest) != event.get("oldest_version", 0):
            yield Finding(
                Kind.WRONG_BATCH,
                record.position,
                f"batch {step} says its oldest version is {event.get('oldest_version', 0)}, it is {min(oldest)}",
            )

    def _committed(self, record: Record) -> Iterator[Finding]:
        story, event, step = self._story, record.event, record.event["step"]
        samples, digest = story.batches.get(step, ([], ""))
        if step not in story.batches:
            yield Finding(Kind.NOT_SEALED, record.position, f"step {step} was committed, but no batch of it was sealed")
        elif event["batch_digest"] != digest or event["samples"] != len(samples):
            yield Finding(Kind.NOT_SEALED, record.position, f"step {step} did not train the batch that was sealed")
        elif event["tokens"] != sum(story.samples[name].prompt_length + story.samples[name].length for name in samples):
            yield Finding(Kind.WRONG_COUNT, record.position, f"step {step} says {event['tokens']} tokens")
        parent, version = event["parent_version"], event["version"]
        if (step, parent, version) != (story.steps, story.steps, story.steps + 1):
            yield Finding(
                Kind.BROKEN_CHAIN,
                record.position,
                f"step {step} makes version {version} from {parent}; version {story.steps} is the newest",
            )
        yield from self._fresh(record, samples, parent)
        story.steps = max(story.steps, version)
        story.weights[version], story.optimizers[version] = event["weights_digest"], states(event)
        if not event.get("stored", True):
            story.unstored.add(version)

    def _fresh(self, record: Record, samples: list[str], parent: int) -> Iterator[Finding]:
        if self._story.follows:
            return  # versions of two runs cannot be counted against each other
        for name in samples:
            sample = self._story.samples[name]
            own, oldest = self._story.groups[sample.group].bound, sample.oldest
            bound = self._story.bound if own is None else own
            if bound is not None and oldest is not None and not 0 <= parent - oldest <= bound:
                yield Finding(
                    Kind.STALE,
                    record.position,
                    f"{name} has tokens of version {oldest}, trained on at {parent}; {bound} versions are the bound",
                )

    def _published(self, record: Record) -> Iterator[Finding]:
        story, event, version = self._story, record.event, record.event["version"]
        if version == 0 and event.get("parent") is None:
            story.weights.setdefault(0, event["digest"])
        elif event.get("parent") != version - 1 or version not in story.weights:
            yield Finding(
                Kind.BROKEN_CHAIN,
                record.position,
                f"version {version} was published on {event.get('parent')}, version {story.steps} is committed",
            )
        story.published[version] = event["digest"]
        yield from self._same_digest(record, story.weights, event["digest"])

    def _stored(self, record: Record) -> Iterator[Finding]:
        """A version is stored once, with its committed weights, and only if its commit came first."""
        unstored, version = self._story.unstored, record.event["version"]
        yield from self._same_digest(record, self._story.weights, record.event["digest"])
        if version not in unstored:
            yield Finding(Kind.WRONG_WEIGHTS, record.position, f"version {version} was stored before")
        unstored.discard(version)

    def _weights_used(self, record: Record) -> Iterator[Finding]:
        yield from self._same_digest(record, self._story.published, record.event["digest"])

    def _checkpoint(self, record: Record) -> Iterator[Finding]:
        event = record.event
        yield from self._same_digest(record, self._story.weights, event["weights_digest"])
        version = event["version"]
        committed, later = self._story.optimizers.get(version), self._story.restored.get(version, set())
        if committed is not None and states(event) not in {committed, *later}:
            yield Finding(
                Kind.WRONG_WEIGHTS,
                record.position,
                f"checkpoint {event['version']} has another optimizer than was committed",
            )

    def _restored(self, record: Record) -> Iterator[Finding]:
        """A trainer resumes from the newest version, with its weights, and calls only the committed optimizer exact."""
        story, event = self._story, record.event
        version, digest = event["version"], states(event)
        if version != story.steps or event.get("weights", "exact") != "exact":
            detail = f"a trainer resumes from version {version}; version {story.steps} is the newest"
            yield Finding(Kind.BROKEN_CHAIN, record.position, detail)
        if event["optimizer"] == "exact" and digest != story.optimizers.get(version):
            yield Finding(Kind.WRONG_WEIGHTS, record.position, f"the optimizer at {version} is not what was committed")
        story.restored.setdefault(version, set()).add(digest)

    def _same_digest(self, record: Record, digests: dict[int, str], digest: str) -> Iterator[Finding]:
        version = record.event["version"]
        if digests.get(version) != digest:
            state = f"has digest {digests[version]}" if version in digests else "is not there"
            yield Finding(
                Kind.WRONG_WEIGHTS, record.position, f"{record.type} says {digest}, version {version} {state}"
            )


def batch_digest(event: dict[str, Any], digests: list[str]) -> str:
    """sha256 over the step and one line per sample: its id, its content's digest, its reward."""
    lines = zip(event["samples"], digests, event["rewards"], strict=True)
    text = "\n".join([str(event["step"]), *(f"{sample} {digest} {reward!r}" for sample, digest, reward in lines)])
    return hashlib.sha256(text.encode()).hexdigest()


def states(event: dict[str, Any]) -> str:
    """Optimizer and critic."""
    return f"{event.get('optimizer_digest', '')}+{event.get('critic_digest', '')}"
