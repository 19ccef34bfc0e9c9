"""Where a replay gets the prompts from: drawn again from the run's files where they are there, else out of the log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from schemas.errors import DataError, SlimeEventsError
from schemas.prompts import PromptRejected
from schemas.subjects import about
from slime_events.conductor.prompts import PromptFeed
from slime_events.conductor.turn import Feed, Prompted
from slime_events.config.settings import TrainSettings
from slime_events.replay.recorded_feed import RecordedFeed
from storage.log import Readable


class Remembering:
    """A feed that reads the rows it was asked for last only once: a replay asks at many positions for the same."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._asked: tuple[dict[str, int], int] | None = None
        self._taken: list[Prompted] = []

    def malformed(self) -> list[PromptRejected]:
        """As the feed's."""
        return self._feed.malformed()

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """As the feed's."""
        asked = (dict(cursors), count)
        if asked != self._asked:
            self._asked, self._taken = asked, self._feed.take(cursors, count)
        return list(self._taken)

    def evaluation(self, name: str, version: int) -> list[Prompted]:
        """As the feed's."""
        return self._feed.evaluation(name, version)


async def make_feed(log: Readable, settings: TrainSettings, *, recorded: bool) -> tuple[Feed, str]:
    """The feed, and in words where its prompts come from. recorded: not even look for the files."""
    why = "as asked"
    if not recorded:
        try:
            return Remembering(_from_files(settings)), f"drawn again from {settings.data.prompt_data}"
        except (SlimeEventsError, OSError) as error:
            why = str(error).splitlines()[0]
    feed = RecordedFeed()
    async for one in log.read(1, about(log.run, "prompt", "*")):
        feed.add(one.envelope.event)
    return feed, f"{feed.prompts} taken as recorded ({why})"


def _from_files(settings: TrainSettings) -> PromptFeed:
    data = settings.data
    if data.prompt_data is None:
        raise DataError("the run has no --prompt-data")
    if data.prompt_sampler != "file" or data.archive_prompts:
        raise DataError("they were drawn by what the log said, each with the position that it was read up to")
    if not Path(settings.engine.hf_checkpoint).is_dir():
        raise DataError(f"the tokenizer's folder {settings.engine.hf_checkpoint} is not there")
    return PromptFeed.open(data, settings.evaluation, settings.rollout, settings.engine.hf_checkpoint)
