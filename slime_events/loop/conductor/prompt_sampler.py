"""`PromptSampler`: draws prompts by their history in the log: by pass rate, and from the archive of another run.

    draw n:  from the archive or from the file, by share  ->  a prompt of it, by the fold of all draws so far

Every draw is an event with its number (`source.offset`) and the log position at which it was decided (`source.seen`),
so the log alone can reproduce it. The cursor is a fold, as for a file in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from msgspec.structs import replace

from schemas.doc import doc
from schemas.errors import DataError
from schemas.ids import TRAIN
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from schemas.recorded import CommonVersion
from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.archived_prompts import ArchivedPrompts, ArchivedRollouts
from slime_events.loop.prompts.buffer_filter import BufferFilter
from slime_events.loop.prompts.draw_stats import DrawStats, Pool, uniform
from slime_events.loop.prompts.prompt import BadRow, Prompted, draw_prompt, rejected, submitted
from slime_events.loop.prompts.refusals import reasons_of
from slime_events.loop.prompts.source import PromptSource
from slime_events.loop.prompts.weight_ancestry import WeightAncestry
from slime_events.plugins.tokenizer import TokenizerSource
from storage.log import Recorded


@dataclass(slots=True)
class PromptSampler:
    """Draws prompts from a file, an archive, or both."""

    data: DataSettings
    seed: int
    source: Annotated[PromptSource | None, doc("the prompt file; None: only the archive")]
    archive: Annotated[ArchivedPrompts | None, doc("prompts of a recorded run; None: only the file")]
    tokenizer: TokenizerSource
    max_prompt_len: Annotated[int | None, doc("tokens; None: no limit")]
    draws: Annotated[DrawStats, doc("draws of this run, up to the last observed event")]
    buffer_filter: Annotated[BufferFilter | None, doc("selects from the archive instead of the pass rates")] = None
    ancestry: Annotated[WeightAncestry, doc("weights of this run, up to the last observed event")] = field(
        default_factory=WeightAncestry
    )

    def observe(self, recorded: Recorded) -> None:
        """Fold every event in, in order."""
        self.draws.apply(recorded)
        self.ancestry.apply(recorded.envelope.event)

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """Return the next `count` usable prompts, with the unusable ones between them.

        Raises DataError if no prompt is usable, and TooManyBadLines as the file does.
        """
        place = _Place(dict(cursors), {})
        taken: list[Prompted] = []
        while count > 0:
            prompted = self._next(place)
            source, refused = prompted.source, isinstance(prompted, PromptRejected)
            place.cursors[source.path] = source.offset + 1
            self._pool(source.path, place).remove(source.row, refused=refused)
            taken.append(prompted)
            count -= not refused
        return taken

    def _next(self, place: _Place) -> Prompted:
        makers = [partial(self._from_file, self.source)] if self.source else []
        makers += [partial(self._from_archive, self.archive)] if self.archive else []
        if self.source and self.archive:
            drawn_before = place.cursor(self.source.url) + place.cursor(self.archive.path)
            if uniform(self.seed, "archive", drawn_before) < self.data.archive_share:
                makers.reverse()
        drawn = next((prompted for make in makers if (prompted := make(place)) is not None), None)
        if drawn is None:
            refused = self.source.refused if self.source else []
            why = f": {reasons_of(refused)}\n  {refused[0]}" if refused else ""
            raise DataError(f"no usable prompt is left: all prompts were refused{why}")
        return drawn

    def _pool(self, path: str, place: _Place) -> Pool:
        """Return the prompts of a source that may be drawn, without those drawn in this call."""
        if path not in place.pools:
            stats = self.draws.by_path.get(path, {})
            rates = {row: (prompt.passed, prompt.answers) for row, prompt in stats.items()}
            if self.archive is not None and path == self.archive.path:
                rates = self.archive.rates() | {row: rate for row, rate in rates.items() if rate[1] > 0}
                if rollouts := self.archive.rollouts:
                    rates = {row: rates[row] for row in rollouts.in_time(self.draws.version, self._common(rollouts))}
            place.pools[path] = Pool(rates, stats, version=self.draws.version, rest=self.data.prompt_rest)
        return place.pools[path]

    def _file_row(self, source: PromptSource, place: _Place) -> int | None:
        """Return a row by pass rate, with some new prompts, for a curriculum; else in the file's order."""
        offset = place.cursor(source.url)
        if self.data.prompt_sampler == "file":
            return source.row_at(*divmod(offset, len(source)))
        pool = self._pool(source.url, place)
        new = _new_row(source, pool)
        if new is not None and uniform(self.seed, "new", offset) < self.data.curriculum_new:
            return new
        seen = pool.draw(uniform(self.seed, source.url, offset))
        if seen is not None or new is not None:
            return seen if seen is not None else new
        return pool.longest_ago()

    def _from_file(self, file: PromptSource, place: _Place) -> Prompted | None:
        row = self._file_row(file, place)
        if row is None:
            return None
        path, offset = file.url, place.cursor(file.url)
        read = file.read_row(row, epoch=self._pool(path, place).times(row), position=offset)
        source = Source(
            path=path, row=row, line=read.line, epoch=read.epoch, offset=offset, seen=max(1, self.draws.position)
        )
        return rejected(read, source) if isinstance(read, BadRow) else submitted(read, source.draw, source)

    def _from_archive(self, archive: ArchivedPrompts, place: _Place) -> Prompted | None:
        """Draw by the user's function, or by the pass rate, in the archive or, once drawn by this run, in this run."""
        path, offset = archive.path, place.cursor(archive.path)
        pool = self._pool(path, place)
        if self.buffer_filter is None:
            row = pool.draw(uniform(self.seed, "again", offset))
        else:
            row = self.buffer_filter.choose([(row, archive.rows[row]) for row in pool.rows])
        if row is None and self.source is None:
            row = pool.longest_ago()
        if row is None:
            return None
        archived = archive.rows[row]
        source = Source(
            path=path,
            row=row,
            line=archived.position,
            epoch=pool.times(row),
            offset=offset,
            key=archived.groups[-1],
            seen=max(1, self.draws.position),
        )
        prompt = archived.prompt
        if archive.rollouts is not None:
            recalled = archive.rollouts.reused(row, source.key, self._common(archive.rollouts))
            return replace(prompt, group=source.draw, source=source, dataset=TRAIN, recalled=recalled)
        fields: dict[str, Any] = {"input": prompt.messages or prompt.text, "label": prompt.label}
        fields |= {"metadata": prompt.metadata, "tools": prompt.tools}
        drawn = draw_prompt(fields, self.data, self.tokenizer, self.max_prompt_len, source)
        return replace(drawn, attributes=prompt.attributes) if isinstance(drawn, PromptSubmitted) else drawn

    def _common(self, rollouts: ArchivedRollouts) -> CommonVersion:
        """Return the newest version that this run and the recorded run have in common. Raises DataError if none is."""
        common = self.ancestry.common(rollouts.ancestry)
        if common is None:
            raise DataError(
                f"this run has no weights in common with run {rollouts.run} at {self.data.archive_prompts}: "
                "how far its "
                "rollouts are off policy is unknown, so give an archive of its base, or --archive-reuse prompts"
            )
        return common


@dataclass(slots=True)
class _Place:
    """Progress of a call of `take`."""

    cursors: dict[str, int]
    pools: Annotated[dict[str, Pool], doc("source to the prompts that this call has not drawn")]

    def cursor(self, path: str) -> int:
        return self.cursors.get(path, 0)


def _new_row(source: PromptSource, pool: Pool) -> int | None:
    """Return the first row in the file's order that was never drawn; None if all were."""
    length, drawn = len(source), pool.drawn
    if drawn >= length:
        return None
    rows = (source.row_at(0, place % length) for place in range(drawn, drawn + length))
    return next((row for row in rows if not pool.has(row)), None)


def make_prompt_sampler(
    data: DataSettings,
    seed: int,
    source: PromptSource | None,
    archive: ArchivedPrompts | None,
    tokenizer: TokenizerSource,
    max_prompt_len: int | None,
    buffer_filter: BufferFilter | None = None,
) -> PromptSampler | None:
    """Return the sampler of these settings; None if prompts come from the file in its order, or there are none."""
    if archive is None and (source is None or data.prompt_sampler == "file"):
        return None
    return PromptSampler(
        data, seed, source, archive, tokenizer, max_prompt_len, DrawStats(data.pass_reward), buffer_filter
    )
