"""Values of both runs from which a part of a step was computed, as a reader of a difference needs them."""

from __future__ import annotations

from schemas.batches import BatchSealed
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import spans_text
from schemas.steps import StepCommitted
from slime_events.analysis.compare.comparison import Input
from slime_events.analysis.compare.run_facts import RunFacts, scalar
from slime_events.model import Sample

GRADIENT_NORM = "grad_norm"
"""Name of the metric of a step."""
Values = dict[str, object]


def both(a: Values, b: Values) -> tuple[Input, ...]:
    """Return the values of both sides by name, without those that neither has."""
    names = (name for name in dict.fromkeys((*a, *b)) if (a.get(name), b.get(name)) != (None, None))
    return tuple(Input(name=name, a=scalar(a.get(name)), b=scalar(b.get(name))) for name in names)


def start_inputs(facts: RunFacts) -> Values:
    branched = facts.run.branched
    return {
        "checkpoint": (facts.settings.get("engine") or {}).get("hf_checkpoint"),
        "branched from": f"v{branched.version} of {branched.run}" if branched else None,
    }


def prompt_inputs(prompt: PromptSubmitted | None) -> Values:
    if prompt is None:
        return {}
    source = prompt.source
    return {
        "source": source.path,
        "line": source.line,
        "epoch": source.epoch,
        "offset": source.offset,
        "key": source.key,
        "text": prompt.text,
    }


def request_inputs(sample: Sample | None) -> Values:
    if sample is None:
        return {}
    request = sample.requests[-1].event if sample.requests else None
    done = sample.completed.event if sample.completed else None
    sampling = request.sampling if request else None
    return {
        "seed": request.seed if request else None,
        "temperature": sampling.temperature if sampling else None,
        "top p": sampling.top_p if sampling else None,
        "top k": sampling.top_k if sampling else None,
        "max new tokens": sampling.max_new_tokens if sampling else None,
        "oldest weights allowed": request.min_version if request else None,
        "attempts": len(sample.requests),
        "weights": spans_text(sample.spans),
        "engine": done.engine if done else None,
        "length": sample.length,
        "stop": done.stop.value if done else None,
    }


def grader_inputs(event: RewardAssigned | RewardFailed) -> Values:
    detail = event.detail if isinstance(event, RewardAssigned) else None
    return {"grader": event.grader, "grader digest": event.grader_digest, "detail": detail}


def answer_inputs(facts: RunFacts, group: str, sample: str) -> Values:
    done, prompt = facts.run.samples[sample].completed, facts.run.groups[group].prompt
    return {"answer": done.event.text if done else None, "label": prompt.event.label if prompt else None}


def verdict_text(event: GroupAccepted | GroupRejected) -> str:
    return "accepted" if isinstance(event, GroupAccepted) else f"rejected ({event.cause.value})"


def verdict_inputs(event: GroupAccepted | GroupRejected) -> Values:
    rewards = " ".join(f"{reward:g}" for reward in event.rewards)
    by = {"filter": event.filter, "filter digest": event.filter_digest, "reason": event.reason, "rewards": rewards}
    return {**by, **event.figures}


def batch_inputs(batch: BatchSealed) -> Values:
    return {
        "groups": len(batch.groups),
        "samples": len(batch.samples),
        "oldest weights": batch.oldest_version,
        "rewards by": batch.post_process or batch.converted_by or None,
        "digest of that function": batch.post_process_digest or batch.functions.get(batch.converted_by),
    }


def fate_inputs(facts: RunFacts, sample: str) -> Values:
    group = facts.group(group_of(sample))
    verdict = verdict_text(group.verdict.event) if group and group.verdict else None
    return {f"step of {sample}": group.step if group else None, f"decision on {sample}": verdict}


def training_inputs(event: StepCommitted) -> Values:
    figures = {name: event.metrics.get(name) for name in (GRADIENT_NORM, "loss", "lr")}
    models = {f"digest of the {name}": digest for name, digest in event.models.items()}
    functions = {f"digest of {name}": digest for name, digest in event.functions.items()}
    return (
        {"batch": event.batch_digest, "samples": event.samples, "tokens": event.tokens} | figures | models | functions
    )
