"""`PromptFeed`: prompts as events, from files, archives, a user's data source and evaluation sets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from schemas.event import Purpose
from schemas.ids import TRAIN, evaluation_group_id, group_id
from schemas.prompts import PromptRejected, Source
from slime_events.core.config.data import DataSettings
from slime_events.core.config.evaluation import EvalSet, EvalSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.loop.conductor.prompt_sampler import PromptSampler, make_prompt_sampler
from slime_events.loop.conductor.user_data_source import UserDataSource
from slime_events.loop.prompts.archived_prompts import ArchivedPrompts
from slime_events.loop.prompts.buffer_filter import BufferFilter
from slime_events.loop.prompts.draw_stats import DrawStats
from slime_events.loop.prompts.prompt import (
    BadRow,
    Prompted,
    PromptRow,
    rejected,
    submitted,
)
from slime_events.loop.prompts.source import EvalSource, PromptSource, eval_sources
from slime_events.loop.prompts.weight_ancestry import WeightAncestry, read_ancestry
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.tokenizer import TokenizerAhead, TokenizerSource, load_tokenizer
from storage.log import Readable, Recorded


class PromptFeed:
    """The conductor's prompts. Its position is the state's cursor. drawer: draws the prompts instead of the file."""

    def __init__(
        self,
        source: PromptSource | None,
        evaluations: Mapping[str, EvalSource],
        data: DataSettings,
        tokenizer: TokenizerSource,
        drawer: PromptSampler | UserDataSource | None = None,
    ) -> None:
        self._source, self._evaluations, self._data = source, evaluations, data
        self.tokenizer, self._drawer = tokenizer, drawer
        self._evaluation_rows: dict[str, list[PromptRow | BadRow]] = {}

    @classmethod
    def open(
        cls,
        data: DataSettings,
        evaluation: EvalSettings,
        rollout: RolloutSettings,
        hf_checkpoint: str,
        archive: ArchivedPrompts | None = None,
        shown: ArgsView | None = None,
        *,
        ahead: bool = False,
    ) -> PromptFeed:
        """Return the feed of these settings. Without a source, only the inbox feeds the run.

        archive: from `archived_prompts`. shown: arguments for a user's data source and buffer filter. ahead: a thread
        loads the tokenizer, which takes a second; no other thread may import modules meanwhile.
        """
        longest = rollout.longest_prompt
        load = partial(load_tokenizer, hf_checkpoint)
        tokenizer: TokenizerSource = TokenizerAhead(load) if ahead else load()
        has_file = data.prompt_data and not data.data_source_path
        source = PromptSource(data, rollout.rollout_seed, tokenizer, longest) if has_file else None
        evaluations = eval_sources(evaluation, data, tokenizer, longest)
        args = ArgsView({**(shown or ArgsView({})).as_dict(), "hf_checkpoint": hf_checkpoint})
        pick = BufferFilter(data.buffer_filter_path, args) if archive and data.buffer_filter_path else None
        drawer: PromptSampler | UserDataSource | None
        if data.data_source_path:
            drawer = UserDataSource(data, args, tokenizer, longest, agents=rollout.agents)
        else:
            drawer = make_prompt_sampler(data, rollout.rollout_seed, source, archive, tokenizer, longest, pick)
        return cls(source, evaluations, data, tokenizer, drawer)

    def observe(self, recorded: Recorded) -> None:
        """Fold every event in, in order, after those that `restore` read: draws may depend on the log."""
        if self._drawer is not None:
            self._drawer.observe(recorded)

    async def restore(self, log: Readable, end: int) -> None:
        """Read the history of draws up to position `end`, and replace what was observed before."""
        if isinstance(self._drawer, PromptSampler):
            self._drawer.draws = DrawStats(self._data.pass_reward)
            await self._drawer.draws.read(log, end)
            self._drawer.ancestry = await read_ancestry(log) if end else WeightAncestry()

    def malformed(self) -> list[PromptRejected]:
        """Return rejections of lines that are not JSON objects, found during indexing; also of evaluation sets."""
        sources = {TRAIN: self._source} if self._source else {}
        sources |= {name: evaluation.source for name, evaluation in self._evaluations.items()}
        return [_rejected(bad, name) for name, source in sources.items() for bad in source.bad_lines]

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """Return the next `count` usable prompts, with the unusable ones between them."""
        if self._drawer is not None:
            return self._drawer.take(cursors, count)
        if self._source is None:
            return []
        rows = self._source.take(cursors.get(self._source.url, 0), count)
        return [_event(row, self._source.url, TRAIN) for row in rows]

    def evaluation(self, name: str, version: int) -> list[Prompted]:
        """Return all prompts of an evaluation set, for a weight version."""
        source, dataset = self._evaluations[name]
        if name not in self._evaluation_rows:
            self._evaluation_rows[name] = source.read(0, range(len(source)))
        return [_question(row, source.url, name, dataset, version) for row in self._evaluation_rows[name]]


def _event(row: PromptRow | BadRow, url: str, dataset: str) -> Prompted:
    if isinstance(row, BadRow):
        return _rejected(row, dataset)
    return submitted(row, group_id(dataset, row.epoch, row.row), _source_of(row, url), dataset=dataset)


def _question(row: PromptRow | BadRow, url: str, name: str, dataset: EvalSet, version: int) -> Prompted:
    """Return the event of a question. name, dataset: of its data set. version: weights under evaluation."""
    if isinstance(row, BadRow):
        return _rejected(row, name)
    return submitted(
        row,
        evaluation_group_id(name, version, row.row),
        _source_of(row, url),
        dataset=name,
        purpose=Purpose.EVAL,
        version=version,
        metadata=dataset.metadata(row.metadata),
        custom_rm_path=dataset.custom_rm_path or "",
        generate_function_path=dataset.custom_generate_function_path or "",
    )


def _source_of(row: PromptRow, url: str) -> Source:
    return Source(path=url, row=row.row, line=row.line, epoch=row.epoch, offset=row.position)


def _rejected(bad: BadRow, dataset: str) -> PromptRejected:
    return rejected(bad, Source(path=bad.file, line=bad.line, epoch=bad.epoch, offset=bad.position), dataset)
