"""Where a replay gets the prompts from: drawn again from the run's files where they are there, else out of the log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from schemas.errors import DataError, SlimeEventsError
from schemas.prompts import PromptRejected
from schemas.subjects import about
from slime_events.analysis.replay.recorded_feed import RecordedFeed
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.cycle import Feed
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.prompt import Prompted
from storage.log import Readable, Recorded


class Remembering:
    """A feed that reads the rows it was asked for last only once: a replay asks at many positions for the same.

    follows_log: what is drawn follows from what the log says, so every event may change it.
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
    """The feed, and in words where its prompts come from. recorded: not even look for the files."""
    why = "as asked"
    if not recorded:
        try:
            follows_log = settings.data.prompt_sampler != "file"
            feed = Remembering(_from_files(settings), follows_log=follows_log)
            return feed, f"drawn again from {settings.data.prompt_data}"
        except (SlimeEventsError, OSError) as error:
            why = str(error).splitlines()[0]
    known = RecordedFeed()
    async for one in log.read(1, about(log.run, "prompt", "*")):
        known.add(one.envelope.event)
    return known, f"{known.prompts} taken as recorded ({why})"


def _from_files(settings: TrainSettings) -> PromptFeed:
    data = settings.data
    if data.prompt_data is None:
        raise DataError("the run has no --prompt-data")
    if data.archive_prompts or data.data_source_path:
        raise DataError("some of them came from elsewhere than --prompt-data")
    if not Path(settings.engine.hf_checkpoint).is_dir():
        raise DataError(f"the tokenizer's folder {settings.engine.hf_checkpoint} is not there")
    return PromptFeed.open(data, settings.evaluation, settings.rollout, settings.engine.hf_checkpoint)
