"""`Comparison`: the first difference of two runs with the inputs of both sides, and their steps side by side."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from schemas.doc import doc

Scalar = str | int | float | bool | None


class Kind(enum.StrEnum):
    """Part of a step that differs, in the order in which one follows from another."""

    PROMPT = "prompt"
    TOKENS = "tokens"
    REWARD = "reward"
    DECISION = "decision"
    BATCH = "batch"
    GRADIENT_NORM = "gradient_norm"
    DIGEST = "digest"


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """A value of both runs: a setting, or something that a part of a step was computed from."""

    name: Annotated[str, doc("name of the value")]
    a: Annotated[Scalar, doc("value in run A; None if it has none")]
    b: Annotated[Scalar, doc("value in run B; None if it has none")]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference of two runs."""

    kind: Annotated[Kind, doc("part of the step that differs")]
    field: Annotated[str, doc("differing field of this part, such as `text`, `token`, `log_prob` or `weights_digest`")]
    step: Annotated[int | None, doc("step whose batch or decisions it belongs to; None: the weights before the first")]
    group: Annotated[str | None, doc("id of the group, if it is about one")] = None
    sample: Annotated[str | None, doc("id of the sample, if it is about one")] = None
    index: Annotated[int | None, doc("place in the response [tokens] or in the batch [samples], from 0")] = None
    a: Annotated[Scalar, doc("value in run A; None if it has none")] = None
    b: Annotated[Scalar, doc("value in run B; None if it has none")] = None
    a_position: Annotated[int | None, doc("position of the event in the log of run A")] = None
    b_position: Annotated[int | None, doc("position of the event in the log of run B")] = None
    inputs: Annotated[tuple[Input, ...], doc("values that it was computed from, equal ones too")] = ()


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of a figure over the samples of a batch."""

    mean: Annotated[float, doc("mean")]
    std: Annotated[float, doc("standard deviation")]
    p10: Annotated[float, doc("10th percentile")]
    p50: Annotated[float, doc("median")]
    p90: Annotated[float, doc("90th percentile")]


class BatchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a batch in one run."""

    samples: Annotated[int, doc("number of samples")]
    rewards: Annotated[Distribution | None, doc("rewards as graded; None without samples")]
    lengths: Annotated[Distribution | None, doc("response lengths [tokens]; None without samples")]


class StepComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A step that both runs have."""

    step: Annotated[int, doc("number of the step, from 0")]
    differences: Annotated[dict[Kind, int], doc("number of differences by kind; without kinds that are equal")]
    a: Annotated[BatchFigures, doc("batch of run A")]
    b: Annotated[BatchFigures, doc("batch of run B")]


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs."""

    run: Annotated[str, doc("name of the run")]
    where: Annotated[str, doc("folder, or URL of the archive")]
    first_step: Annotated[int | None, doc("first step with a batch; None if it has none")]
    last_step: Annotated[int | None, doc("last step with a batch; None if it has none")]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of two runs."""

    a: Annotated[ComparedRun, doc("run A")]
    b: Annotated[ComparedRun, doc("run B")]
    settings: Annotated[tuple[Input, ...], doc("settings, versions of packages and machine facts that differ")]
    first: Annotated[Difference | None, doc("first difference; None if the runs are equal in what both have")]
    steps: Annotated[tuple[StepComparison, ...], doc("steps that both runs have a batch of")]
