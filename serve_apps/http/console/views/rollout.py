"""*Rollout*: what one sample was asked and answered, and its exact tokens."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Response

from schemas.doc import doc
from serve_apps.http.console.frame import FRAME, framed
from serve_apps.http.console.open_runs import OpenRuns
from serve_apps.http.console.rows import literal
from serve_apps.http.console.view import ROOT, AnswerSource, ConsoleView, RunName, answered, documented, show_source
from slime_events.analysis.lineage.lineage import Advantage, Kind, LineageQuery
from slime_events.analysis.lineage.resolve import lineage
from slime_events.analysis.views.read_records import read_sample_view
from slime_events.analysis.views.sample import SampleView, Token

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
    advantage: Annotated[Advantage | None, doc("its advantage; None if it is not trained on, or unknown")]
    arrays: Annotated[dict[str, str], doc("arrays after the head, in order: name to type, each with n elements")]


ARRAYS = {"tokens": "int32", "log_probs": "float32", "versions": "int32", "trained": "uint8"}


def token_frame(sample: str, tokens: Sequence[Token], advantage: Advantage | None) -> bytes:
    """Return tokens as a frame."""
    head = TokenHead(
        sample=sample,
        n=len(tokens),
        texts=tuple(token.text for token in tokens),
        advantage=advantage,
        arrays=ARRAYS,
    )
    columns: dict[str, Sequence[float]] = {
        "tokens": [token.token for token in tokens],
        "log_probs": [token.log_prob for token in tokens],
        "versions": [NO_VERSION if token.version is None else token.version for token in tokens],
        "trained": [token.trained for token in tokens],
    }
    return framed(head, {name: (kind, columns[name]) for name, kind in ARRAYS.items()})


def _add(router: APIRouter, runs: OpenRuns) -> None:
    @router.get(f"{ROOT}/rollouts/{{sample:path}}", **documented(RolloutPage, "Get a rollout"))
    async def rollout(run: RunName, sample: SampleName) -> Response:
        async with runs.use(run) as opened:
            log = opened.opened.log
            view = await read_sample_view(log, sample, opened.opened.fetch)
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
            view = await read_sample_view(opened.opened.log, sample, opened.opened.fetch)
            advantage = None
            if view.step is not None and not view.removed:
                answer = await lineage(opened.opened, LineageQuery(kind=Kind.SAMPLE, value=view.sample))
                advantage = next((entry.advantage for entry in answer.samples if entry.sample == view.sample), None)
            return Response(token_frame(view.sample, view.tokens, advantage), media_type=FRAME)


VIEW = ConsoleView("rollout", (RolloutPage, TokenHead), _add)
