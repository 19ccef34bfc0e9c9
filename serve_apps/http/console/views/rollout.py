"""*Rollout*: what one sample was asked and answered, and its exact tokens."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Response

from schemas.doc import doc
from schemas.event import type_of
from schemas.rewards import RewardAssigned
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from serve_apps.http.console.chunk_times import RolloutTimes, read_times
from serve_apps.http.console.frame import FRAME, framed
from serve_apps.http.console.open_runs import OpenRun, OpenRuns
from serve_apps.http.console.rows import literal
from serve_apps.http.console.view import ROOT, AnswerSource, ConsoleView, RunName, answered, documented, show_source
from serve_apps.http.console.wire import WirePage, WireText, read_wire, read_wire_text
from slime_events.analysis.lineage.lineage import Advantage, Kind, LineageQuery
from slime_events.analysis.lineage.resolve import lineage
from slime_events.analysis.views.read_records import read_sample_view
from slime_events.analysis.views.sample import SampleView, Token
from slime_events.core.tokens.trajectory import Fetch
from slime_events.model.lookup import Lookup
from slime_events.plugins.sample_view import TOKENIZER
from storage.log import Readable

SampleName = Annotated[str, Path(description="id of the sample, or a unique prefix of it")]
NO_VERSION = -1


class RolloutPage(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout."""

    sample: Annotated[SampleView, doc("the sample; its `tokens` are empty here, see the route `tokens`")]
    siblings: Annotated[tuple[str, ...], doc("ids of the group's samples that have a row, in order")]
    source: Annotated[AnswerSource, doc("command and query for it")]


class TokenHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a token frame."""

    sample: Annotated[str, doc("id of the sample")]
    n: Annotated[int, doc("number of response tokens")]
    texts: Annotated[tuple[str | None, ...], doc("text of each token [n]; None without a tokenizer")]
    no_texts: Annotated[str | None, doc("why the tokens have no text; None if they have")]
    advantage: Annotated[Advantage | None, doc("its advantage; None if it is not trained on, or unknown")]
    step_gap: Annotated[
        float | None,
        doc(
            "mean absolute difference of the trainer's and the engine's log-probs over its step [nats]: the step's "
            "metric `train_rollout_logprob_abs_diff`, None without it. The log has no trainer's log-probs by token"
        ),
    ]
    arrays: Annotated[dict[str, str], doc("arrays after the head, in order: name to type, each with n elements")]


ARRAYS = {"tokens": "int32", "log_probs": "float32", "versions": "int32", "trained": "uint8"}
TEACHER = {"teacher": "float32"}
"""The array that follows if the sample was graded with a teacher: its log-probs [nats]."""
GAP = "train_rollout_logprob_abs_diff"


def token_frame(
    sample: str,
    tokens: Sequence[Token],
    advantage: Advantage | None,
    step_gap: float | None = None,
    teacher: Sequence[float] | None = None,
    checkpoint: str | None = None,
) -> bytes:
    """Return tokens as a frame. teacher: a teacher's log-probs of the tokens, in their order. checkpoint: the run's."""
    arrays = ARRAYS | (TEACHER if teacher is not None else {})
    head = TokenHead(
        sample=sample,
        n=len(tokens),
        texts=tuple(token.text for token in tokens),
        no_texts=_no_texts(checkpoint) if any(token.text is None for token in tokens) else None,
        advantage=advantage,
        step_gap=step_gap,
        arrays=arrays,
    )
    columns: dict[str, Sequence[float]] = {
        "tokens": [token.token for token in tokens],
        "log_probs": [token.log_prob for token in tokens],
        "versions": [NO_VERSION if token.version is None else token.version for token in tokens],
        "trained": [token.trained for token in tokens],
        "teacher": teacher or [],
    }
    return framed(head, {name: (kind, columns[name]) for name, kind in arrays.items()})


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/rollouts/{{sample:path}}", **documented(RolloutPage, "Get a rollout"))
    async def rollout(run: RunName, sample: SampleName) -> Response:
        async with runs.use(run) as opened:
            log = opened.opened.log
            view = await read_sample_view(log, sample, opened.opened.fetch, _weights(opened))
            _, rows = await opened.rows(
                f"SELECT sample FROM samples WHERE group_id = {literal(view.group)} ORDER BY position, sample"
            )
            sql = f"SELECT * FROM samples WHERE sample = {literal(view.sample)}"
            source = show_source(opened, f"--sample {shlex.quote(view.sample)}", sql, await log.position())
            view = msgspec.structs.replace(view, tokens=())
            siblings = tuple(rows["sample"].to_pylist())
            return answered(RolloutPage(sample=view, siblings=siblings, source=source))

    tokens_of = documented(TokenHead, "Get a rollout's tokens: this head, then arrays, see `framed`")

    @router.get(f"{ROOT}/tokens/{{sample:path}}", **tokens_of)
    async def tokens(run: RunName, sample: SampleName) -> Response:
        async with runs.use(run) as opened:
            view = await read_sample_view(opened.opened.log, sample, opened.opened.fetch, _weights(opened))
            advantage = None
            if view.step is not None and not view.removed:
                answer = await lineage(opened.opened, LineageQuery(kind=Kind.SAMPLE, value=view.sample))
                advantage = next((entry.advantage for entry in answer.samples if entry.sample == view.sample), None)
            step_gap = None if view.step is None else await _step_gap(opened.opened.log, view.step)
            checkpoint = opened.opened.settings.engine.hf_checkpoint
            teacher = _teacher(view, opened.opened.fetch)
            frame = token_frame(view.sample, view.tokens, advantage, step_gap, teacher, checkpoint)
            return Response(frame, media_type=FRAME)

    @router.get(f"{ROOT}/times/{{sample:path}}", **documented(RolloutTimes, "Get the times of a rollout's tokens"))
    async def times(run: RunName, sample: SampleName) -> Response:
        async with runs.use(run) as opened:
            return answered(await read_times(opened.opened.log, await _whole_id(opened, sample), opened.opened.fetch))

    @router.get(f"{ROOT}/requests/{{sample:path}}", **documented(WirePage, "List the requests behind a rollout"))
    async def requests(run: RunName, sample: SampleName) -> Response:
        async with runs.use(run) as opened:
            return answered(await read_wire(opened.opened.log, await _whole_id(opened, sample)))

    request_of = documented(WireText, "Get one of the requests behind a rollout, as it was sent")

    @router.get(f"{ROOT}/request/{{position}}/{{sample:path}}", **request_of)
    async def request(run: RunName, position: int, sample: SampleName) -> Response:
        async with runs.use(run) as opened:
            name = await _whole_id(opened, sample)
            return answered(await read_wire_text(opened.opened.log, name, position, opened.opened.fetch))


async def _whole_id(opened: OpenRun, sample: str) -> str:
    """Return the id of a sample by a unique prefix. Raises RunNotFound, which names the nearest ids."""
    return (await Lookup(opened.opened.log).sample(sample)).sample


def _weights(opened: OpenRun) -> pathlib.Path | None:
    return None if opened.opened.folder is None else opened.opened.folder.weights


def _no_texts(checkpoint: str | None) -> str:
    """Return why tokens have no text."""
    if not checkpoint:
        return "the run names no --hf-checkpoint, so its tokenizer is unknown"
    return f"there is neither {checkpoint}/{TOKENIZER} nor a version of the run's weights on this machine that has it"


async def _step_gap(log: Readable, step: int) -> float | None:
    event = await log.last(of_type(log.run, type_of(StepCommitted), str(step)))
    return event.envelope.event.metrics.get(GAP) if event and isinstance(event.envelope.event, StepCommitted) else None


def _teacher(view: SampleView, fetch: Fetch) -> list[float] | None:
    """Return a teacher's log-probs of a sample; None without them, or if they are not those of its tokens."""
    array = view.reward.teacher_log_probs if isinstance(view.reward, RewardAssigned) else None
    return fetch(array).tolist() if array is not None and array.n == len(view.tokens) else None


VIEW = ConsoleView("rollout", (RolloutPage, TokenHead, RolloutTimes, WirePage, WireText), _add)
