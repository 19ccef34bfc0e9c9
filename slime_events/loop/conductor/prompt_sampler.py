"""`SampledPrompts`: prompts that are drawn by what the log says of them: by pass rate, and from another run's archive.

    draw n:  from the archive or from the file, by share  ->  which prompt of it, by the fold of all draws so far

Every draw is an event with its number (`source.offset`) and the position of the log that it was decided on
(`source.seen`), so it can be made again from the log alone; the cursor is the fold, as for a file in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from schemas.errors import DataError
from schemas.ids import TRAIN
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from schemas.recorded import CommonVersion
from slime_events.core.config.data import DataSettings
from slime_events.loop.conductor.submitted import submitted
from slime_events.loop.prompts.archived_prompts import ArchivedPrompts
from slime_events.loop.prompts.buffer_filter import BufferFilter
from slime_events.loop.prompts.curriculum import Pool, uniform
from slime_events.loop.prompts.draw_stats import Draws
from slime_events.loop.prompts.prompt import Prompt, Tokenizer, make_prompt
from slime_events.loop.prompts.row import BadRow, Problem
from slime_events.loop.prompts.source import PromptSource
from slime_events.loop.prompts.weight_ancestry import WeightLine
from storage.log import Recorded

Prompted = PromptSubmitted | PromptRejected


@dataclass(slots=True)
class SampledPrompts:
    """source: the prompt file; archive: a recorded run's prompts; at least one. draws, line: of this run, folded as far
    as the log was heard. buffer_filter: chooses of the archive in place of the pass rates.
    """

    data: DataSettings
    seed: int
    source: PromptSource | None
    archive: ArchivedPrompts | None
    tokenizer: Tokenizer
    max_prompt_len: int | None
    draws: Draws
    buffer_filter: BufferFilter | None = None
    line: WeightLine = field(default_factory=WeightLine)

    def hear(self, recorded: Recorded) -> None:
        """Every event, in order."""
        self.draws.apply(recorded)
        self.line.apply(recorded.envelope.event)

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """The next `count` usable prompts, with the unusable ones met on the way.

        Raises DataError where none is usable, TooManyBadLines as the file does.
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
        makers = [self._from_file] if self.source else []
        makers += [self._from_archive] if self.archive else []
        if len(makers) == 2 and self._is_archives_turn(place):
            makers.reverse()
        found = next((prompted for make in makers if (prompted := make(place)) is not None), None)
        if found is None:
            raise DataError("no prompt is left that can be used: all that there were have been refused")
        return found

    def _is_archives_turn(self, place: _Place) -> bool:
        assert self.source is not None
        assert self.archive is not None
        drawn = place.cursor(self.source.url) + place.cursor(self.archive.path)
        return uniform(self.seed, "archive", drawn) < self.data.archive_share

    def _pool(self, path: str, place: _Place) -> Pool:
        """The prompts of a source that may be drawn, as this call has left them."""
        if path not in place.pools:
            known = self.draws.by_path.get(path, {})
            rates = {row: (one.passed, one.answers) for row, one in known.items()}
            if self.archive is not None and path == self.archive.path:
                rates = self.archive.rates() | {row: rate for row, rate in rates.items() if rate[1] > 0}
                if self.archive.rollouts is not None:
                    in_time = self.archive.rollouts.in_time(self.draws.version, self._common())
                    rates = {row: rates[row] for row in in_time}
            place.pools[path] = Pool(rates, known, version=self.draws.version, rest=self.data.prompt_rest)
        return place.pools[path]

    def _file_row(self, source: PromptSource, place: _Place) -> int | None:
        """By pass rate where that is asked for, some of them new; else in the file's order."""
        offset = place.cursor(source.url)
        if self.data.prompt_sampler == "file":
            return source.row_at(*divmod(offset, len(source)))
        pool = self._pool(source.url, place)
        new = _new_row(source, pool)
        if new is not None and uniform(self.seed, "new", offset) < self.data.curriculum_new:
            return new
        known = pool.draw(uniform(self.seed, source.url, offset))
        if known is not None or new is not None:
            return known if known is not None else new
        return pool.longest_ago()

    def _from_file(self, place: _Place) -> Prompted | None:
        assert self.source is not None
        row = self._file_row(self.source, place)
        if row is None:
            return None
        path, offset = self.source.url, place.cursor(self.source.url)
        read = self.source.read_row(row, epoch=self._pool(path, place).times(row), position=offset)
        source = Source(path=path, row=row, line=read.line, epoch=read.epoch, offset=offset, seen=self._seen)
        if isinstance(read, BadRow):
            return PromptRejected(source=source, reason=f"{read.reason.value}: {read.message}", dataset=TRAIN)
        return submitted(read, source.draw, source)

    def _from_archive(self, place: _Place) -> Prompted | None:
        assert self.archive is not None
        path, offset = self.archive.path, place.cursor(self.archive.path)
        pool = self._pool(path, place)
        row = self._again(pool, uniform(self.seed, "again", offset))
        if row is None and self.source is None:
            row = pool.longest_ago()
        if row is None:
            return None
        archived = self.archive.rows[row]
        source = Source(
            path=path,
            row=row,
            line=archived.position,
            epoch=self._pool(path, place).times(row),
            offset=offset,
            key=archived.groups[-1],
            seen=self._seen,
        )
        if self.archive.rollouts is not None:
            recalled = self.archive.rollouts.recalled(row, source.key, self._common())
            group, dataset = source.draw, TRAIN
            return replace(archived.prompt, group=group, source=source, dataset=dataset, recalled=recalled)
        made = self._made(archived.prompt)
        if isinstance(made, Problem):
            return PromptRejected(source=source, reason=f"{made.reason.value}: {made.message}", dataset=TRAIN)
        return submitted(made, source.draw, source)

    def _common(self) -> CommonVersion:
        """Where the line of this run's weights and that of the recorded run part."""
        assert self.archive is not None
        assert self.archive.rollouts is not None
        rollouts = self.archive.rollouts
        common = self.line.common(rollouts.line)
        if common is None:
            raise DataError(
                f"no weights of run {rollouts.run} at {self.archive.path} are weights of this run: how far its "
                "rollouts are off policy cannot be told, so give an archive of its base, or --archive-reuse prompts"
            )
        return common

    def _again(self, pool: Pool, at: float) -> int | None:
        """By the user's function, or by the pass rate in the archive and, once drawn here, by that of here."""
        assert self.archive is not None
        if self.buffer_filter is None:
            return pool.draw(at)
        return self.buffer_filter.choose([(row, self.archive.rows[row]) for row in pool.rows])

    @property
    def _seen(self) -> int:
        return max(1, self.draws.position)

    def _made(self, prompt: PromptSubmitted) -> Prompt | Problem:
        """The prompt as this run's model sees it: a chat by its template, a text as it stands."""
        fields: dict[str, Any] = {"input": prompt.messages or prompt.text, "label": prompt.label}
        fields |= {"metadata": prompt.metadata, "tools": prompt.tools}
        settings = DataSettings(
            input_key="input",
            label_key="label",
            apply_chat_template=prompt.messages is not None,
            apply_chat_template_kwargs=self.data.apply_chat_template_kwargs,
        )
        return make_prompt(fields, settings, self.tokenizer, self.max_prompt_len)


@dataclass(slots=True)
class _Place:
    """Where one call stands: the cursors, and by source the prompts that it has not drawn yet."""

    cursors: dict[str, int]
    pools: dict[str, Pool]

    def cursor(self, path: str) -> int:
        return self.cursors.get(path, 0)


def _new_row(source: PromptSource, pool: Pool) -> int | None:
    """The first of the file's order that was never drawn."""
    length, drawn = len(source), pool.drawn
    if drawn >= length:
        return None
    rows = (source.row_at(0, place % length) for place in range(drawn, drawn + length))
    return next((row for row in rows if not pool.has(row)), None)


def sampled_prompts(
    data: DataSettings,
    seed: int,
    source: PromptSource | None,
    archive: ArchivedPrompts | None,
    tokenizer: Tokenizer,
    max_prompt_len: int | None,
    buffer_filter: BufferFilter | None = None,
) -> SampledPrompts | None:
    """The sampler that settings ask for; None where prompts are those of the file in its order, or there are none."""
    if archive is None and (source is None or data.prompt_sampler == "file"):
        return None
    return SampledPrompts(
        data, seed, source, archive, tokenizer, max_prompt_len, Draws(data.pass_reward), buffer_filter
    )
