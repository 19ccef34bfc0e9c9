"""Where a replay gets the prompts from: drawn again from the run's files where they are there, else out of the log."""

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
    """A `Feed` of the prompts in a log, for cursors that only grow: in the order drawn, each row once."""

    def __init__(self) -> None:
        self._rows: list[Prompted] = []
        self._done = 0  # how many rows lie behind the cursors of every `take`
        self._evaluations: dict[tuple[str, int], list[Prompted]] = {}

    @property
    def prompts(self) -> int:
        """How many prompts it has."""
        return len(self._rows) + sum(map(len, self._evaluations.values()))

    def add(self, event: Event) -> None:
        """Take in the next event of the log; only drawn prompts are kept."""
        if not isinstance(event, PromptSubmitted | PromptRejected) or not is_decision(event):
            return
        if isinstance(event, PromptSubmitted) and event.purpose is Purpose.EVAL:
            self._evaluations.setdefault((event.dataset, event.version or 0), []).append(event)
        else:
            self._rows.append(event)

    def observe(self, recorded: Recorded) -> None:
        """Nothing: the whole log is taken in before."""

    def malformed(self) -> list[PromptRejected]:
        """None: lines that are no rows are no decision."""
        return []

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """The next `count` prompts after the cursors, or what the log has of them."""
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
        """The prompts that were recorded of it."""
        return list(self._evaluations.get((name, version), ()))


def _is_behind(row: Prompted, cursors: Mapping[str, int]) -> bool:
    return row.source.offset < cursors.get(row.source.path, 0)


class CachedFeed:
    """A feed that reads the rows of the last question only once: a replay asks the same at many positions.

    follows_log: which rows are drawn depends on the log, so every event may change it.
    """

    def __init__(self, feed: Feed, *, follows_log: bool = False) -> None:
        self._feed, self._follows_log = feed, follows_log
        self._asked: tuple[dict[str, int], int] | None = None
        self._taken: list[Prompted] = []

    def observe(self, recorded: Recorded) -> None:
        """As the feed's."""
        self._feed.observe(recorded)
        if self._follows_log:
            self._asked = None

    def malformed(self) -> list[PromptRejected]:
        """As the feed's."""
        return self._feed.malformed()

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """As the feed's. Raises DataError where the file has lost rows since."""
        asked = (dict(cursors), count)
        if asked != self._asked:
            try:
                self._asked, self._taken = asked, self._feed.take(cursors, count)
            except IndexError as error:
                raise DataError("the prompt file has fewer rows than when the run drew from it") from error
        return list(self._taken)

    def evaluation(self, name: str, version: int) -> list[Prompted]:
        """As the feed's."""
        return self._feed.evaluation(name, version)


async def make_feed(log: Readable, settings: TrainSettings, *, recorded: bool) -> tuple[Feed, str]:
    """The feed, and in words where its prompts come from. recorded: without a look at the files."""
    why = "as asked"
    if not recorded:
        try:
            feed = CachedFeed(_from_files(settings), follows_log=settings.data.prompt_sampler != "file")
            return feed, f"drawn again from {settings.data.prompt_data}"
        except (SlimeEventsError, OSError) as error:
            why = str(error).splitlines()[0]
    from_log = RecordedFeed()
    async for one in log.read(1, about(log.run, "prompt", "*")):
        from_log.add(one.envelope.event)
    return from_log, f"{from_log.prompts} taken as recorded ({why})"


def _from_files(settings: TrainSettings) -> PromptFeed:
    data = settings.data
    if data.prompt_data is None:
        raise DataError("the run has no --prompt-data")
    if data.archive_prompts or data.data_source_path:
        raise DataError("some of them came from elsewhere than --prompt-data")
    if not Path(settings.engine.hf_checkpoint).is_dir():
        raise DataError(f"the tokenizer's folder {settings.engine.hf_checkpoint} is not there")
    return PromptFeed.open(data, settings.evaluation, settings.rollout, settings.engine.hf_checkpoint)
