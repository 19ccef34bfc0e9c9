"""Prompts of a replay: drawn again from the run's files if they exist, otherwise from the log."""

import itertools
from collections.abc import Mapping
from pathlib import Path

from schemas.errors import DataError, SlimeEventsError
from schemas.event import Event, Purpose
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.subjects import about
from slime_events.analysis.replay.equality import is_decision
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.cycle import Feed
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.prompt import Prompted
from storage.log import Readable, Recorded


class RecordedFeed:
    """A `Feed` of the prompts in a log, in the order of drawing, each row once. Cursors must only grow."""

    def __init__(self) -> None:
        self._rows: list[Prompted] = []
        self._done = 0  # number of rows behind the cursors of every `take`
        self._evaluations: dict[tuple[str, int], list[Prompted]] = {}

    @property
    def prompts(self) -> int:
        return len(self._rows) + sum(map(len, self._evaluations.values()))

    def add(self, event: Event) -> None:
        """Take in the next event of the log. Only drawn prompts are kept."""
        if not isinstance(event, PromptSubmitted | PromptRejected) or not is_decision(event):
            return
        if isinstance(event, PromptSubmitted) and event.purpose is Purpose.EVAL:
            self._evaluations.setdefault((event.dataset, event.version or 0), []).append(event)
        else:
            self._rows.append(event)

    def observe(self, recorded: Recorded) -> None:
        """Do nothing: the whole log is taken in before."""

    def malformed(self) -> list[PromptRejected]:
        """Return nothing: a line that is not a row is not a decision."""
        return []

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """Return the next `count` prompts after the cursors, or as many as the log has."""
        while self._done < len(self._rows) and _is_behind(self._rows[self._done], cursors):
            self._done += 1
        taken: list[Prompted] = []
        for row in itertools.islice(self._rows, self._done, None):
            if count <= 0:
                break
            if not _is_behind(row, cursors):
                taken.append(row)
                count -= isinstance(row, PromptSubmitted)
        return taken

    def evaluation(self, name: str, version: int) -> list[Prompted]:
        """Return the recorded prompts of an evaluation."""
        return list(self._evaluations.get((name, version), ()))


def _is_behind(row: Prompted, cursors: Mapping[str, int]) -> bool:
    return row.source.offset < cursors.get(row.source.path, 0)


class CachedFeed:
    """A feed that caches the rows of the last `take`: a replay asks for the same rows at many positions.

    follows_log: the rows depend on the log, so any event may change them.
    """

    def __init__(self, feed: Feed, *, follows_log: bool = False) -> None:
        self._feed, self._follows_log = feed, follows_log
        self._cursors_and_count: tuple[dict[str, int], int] | None = None
        self._taken: list[Prompted] = []

    def observe(self, recorded: Recorded) -> None:
        self._feed.observe(recorded)
        if self._follows_log:
            self._cursors_and_count = None

    def malformed(self) -> list[PromptRejected]:
        return self._feed.malformed()

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """Return the next prompts of the feed. Raises DataError if the file has lost rows since."""
        request = (dict(cursors), count)
        if request != self._cursors_and_count:
            try:
                self._cursors_and_count, self._taken = request, self._feed.take(cursors, count)
            except IndexError as error:
                raise DataError("the prompt file has fewer rows than when the run drew from it") from error
        return list(self._taken)

    def evaluation(self, name: str, version: int) -> list[Prompted]:
        return self._feed.evaluation(name, version)


async def make_feed(log: Readable, settings: TrainSettings, *, recorded: bool) -> tuple[Feed, str]:
    """Return the feed, and the origin of its prompts in words. recorded: do not read the files."""
    why = "--recorded-prompts"
    if not recorded:
        try:
            feed = CachedFeed(_from_files(settings), follows_log=settings.data.prompt_sampler != "file")
            return feed, f"drawn again from {settings.data.prompt_data}"
        except (SlimeEventsError, OSError) as error:
            why = str(error).splitlines()[0]
    from_log = RecordedFeed()
    async for recorded_event in log.read(1, about(log.run, "prompt", "*")):
        from_log.add(recorded_event.envelope.event)
    return from_log, f"{from_log.prompts} taken as recorded ({why})"


def _from_files(settings: TrainSettings) -> PromptFeed:
    data = settings.data
    if data.prompt_data is None:
        raise DataError("the run has no --prompt-data")
    if data.archive_prompts or data.data_source_path:
        raise DataError("some prompts did not come from --prompt-data")
    if not Path(settings.engine.hf_checkpoint).is_dir():
        raise DataError(f"the tokenizer's folder {settings.engine.hf_checkpoint} does not exist")
    return PromptFeed.open(data, settings.evaluation, settings.rollout, settings.engine.hf_checkpoint)
