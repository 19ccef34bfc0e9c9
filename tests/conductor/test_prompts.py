"""Test the sources of prompts: files epoch after epoch, a user's own source, and what is drawn by the log."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from schemas.arrays import pack_tokens
from schemas.errors import InvalidValue, PlugPointError
from schemas.inbox import InboxPrompt
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from slime_events.core.config.data import DataSettings
from slime_events.core.config.evaluation import EvalSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.loop.conductor import prompts, user_data_source
from slime_events.loop.conductor.outside_prompts import OutsidePrompts
from slime_events.loop.conductor.prompt_sampler import PromptSampler, make_prompt_sampler
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.conductor.user_data_source import UserDataSource
from slime_events.loop.prompts.archived_prompts import ArchivedPrompt, ArchivedPrompts
from slime_events.loop.prompts.draw_stats import DrawStats, PromptStats, uniform
from slime_events.loop.prompts.source import PromptSource
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loss_masks import TYPES
from slime_events.plugins.sample import Sample
from tests.conductor.driver import Driver, make_plan
from tests.docs.pages import ROOT
from tests.simulation.parts import Letters
from tests.simulation.roles import make_feed

BASE = ROOT / "slime_events" / "app" / "demo" / "base"


def test_a_file_epoch_after_epoch(tmp_path: Path) -> None:
    feed = make_feed(tmp_path, ["a", "b"], {"held": ["x", {"input": 7}, "y"]})
    url = (tmp_path / "train.jsonl").as_posix()
    drawn = feed.take({}, 5)
    assert [(event.source.offset, event.source.epoch, event.source.row) for event in drawn] == [
        (0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 0),
    ]  # fmt: skip
    assert [event.group for event in drawn if isinstance(event, PromptSubmitted)][2] == "train-1-000000"
    assert feed.take({drawn[0].source.path: 3}, 2) == drawn[3:]
    assert drawn[0].source.path.endswith(url)
    for _ in range(2):
        assert [type(event) for event in feed.evaluation("held", 3)] == [
            PromptSubmitted,
            PromptRejected,
            PromptSubmitted,
        ]


@pytest.mark.parametrize(
    ("lengths", "fits"),
    [({"rollout_max_context_len": 3}, "ab"), ({"rollout_max_prompt_len": 3}, "abc"),
     ({"rollout_max_context_len": 3, "rollout_max_prompt_len": 1}, "a")],
)  # fmt: skip
def test_a_prompt_leaves_room_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: dict[str, int], fits: str
) -> None:
    (tmp_path / "p.jsonl").write_text("".join(f'{{"input": "{"abcd"[:n]}"}}\n' for n in (1, 2, 3, 4)))
    monkeypatch.setattr(prompts, "load_tokenizer", lambda folder: Letters())
    feed = PromptFeed.open(
        DataSettings(prompt_data=str(tmp_path / "p.jsonl")), EvalSettings(), RolloutSettings(**lengths), ""
    )
    first = feed.take({}, len(fits) + 1)
    texts = [event.text for event in first if isinstance(event, PromptSubmitted) and event.source.epoch == 0]
    assert texts[-1] == fits


def test_only_a_prompt_waits_for_the_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.jsonl").write_text('{"input": "ab"}\nno JSON\n')
    loads = threading.Event()

    def load(folder: str) -> Letters:
        assert loads.wait(10.0), "it was asked before anybody needed it"
        return Letters()

    monkeypatch.setattr(prompts, "load_tokenizer", load)
    data = DataSettings(prompt_data=str(tmp_path / "p.jsonl"))
    feed = PromptFeed.open(data, EvalSettings(), RolloutSettings(), "", ahead=True)
    assert [event.source.line for event in feed.malformed()] == [2]
    loads.set()
    assert [type(event) for event in feed.take({}, 1)] == [PromptSubmitted]


@pytest.mark.parametrize("mask", TYPES)
@pytest.mark.parametrize("ahead", [True, False])
def test_chats_to_train_on_are_read_with_a_tokenizer_that_is_loaded_meanwhile(
    tmp_path: Path, mask: str, ahead: bool
) -> None:
    """Load a real one: its placeholder has none of its methods."""
    rows = [{"messages": [{"role": "user", "content": f"{n}+1"}, {"role": "assistant", "content": str(n + 1)}]}
            for n in range(3)]  # fmt: skip
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataSettings(
        prompt_data=str(tmp_path / "chats.jsonl"), input_key="messages", supervised=True, loss_mask_type=mask
    )
    feed = PromptFeed.open(data, EvalSettings(), RolloutSettings(), str(BASE), ahead=ahead)
    drawn = feed.take({}, 3)
    assert [type(event) for event in drawn] == [PromptSubmitted] * 3, drawn
    tokens = [event.tokens for event in drawn if isinstance(event, PromptSubmitted)]
    now = PromptFeed.open(data, EvalSettings(), RolloutSettings(), str(BASE)).take({}, 3)
    assert tokens == [event.tokens for event in now if isinstance(event, PromptSubmitted)]


@pytest.mark.parametrize("template", [True, False])
def test_every_way_to_a_prompt_is_the_same_with_a_tokenizer_that_is_loaded_meanwhile(
    tmp_path: Path, template: bool
) -> None:
    """The file's order, a curriculum, an evaluation, and what the doors take in."""
    (tmp_path / "p.jsonl").write_text("".join(f'{{"input": "{n}+{n}"}}\n' for n in range(4)))
    path = str(tmp_path / "p.jsonl")

    def read(sampler_name: Any, *, ahead: bool) -> list[Any]:
        data = DataSettings(prompt_data=path, apply_chat_template=template, prompt_sampler=sampler_name)
        eval_settings = EvalSettings(eval_prompt_data=["held", path])
        feed = PromptFeed.open(data, eval_settings, RolloutSettings(), str(BASE), ahead=ahead)
        outside = OutsidePrompts(data, feed.tokenizer, 20).submitted(InboxPrompt(key="k", prompt="1+1"))
        return [*feed.take({}, 4), *feed.evaluation("held", 1), outside]

    for name in ("file", "curriculum"):
        assert read(name, ahead=True) == read(name, ahead=False)
        assert {type(event) for event in read(name, ahead=True)} == {PromptSubmitted}


def test_a_tokenizer_that_cannot_be_loaded_is_no_fault_of_a_chat(tmp_path: Path) -> None:
    """Not a row's template that raised something, but the folder."""
    (tmp_path / "p.jsonl").write_text('{"input": "ab"}\n')
    data = DataSettings(prompt_data=str(tmp_path / "p.jsonl"), apply_chat_template=True)
    feed = PromptFeed.open(data, EvalSettings(), RolloutSettings(), str(tmp_path), ahead=True)
    with pytest.raises(InvalidValue, match=str(tmp_path)):
        feed.take({}, 1)


def test_a_tokenizer_that_cannot_be_loaded_is_an_error_of_the_prompts(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"input": "ab"}\n')
    data = DataSettings(prompt_data=str(tmp_path / "p.jsonl"))
    feed = PromptFeed.open(data, EvalSettings(), RolloutSettings(), str(tmp_path), ahead=True)
    with pytest.raises(InvalidValue, match=str(tmp_path)):
        feed.take({}, 1)


class Mine:
    """Three groups at a time; every prompt that is a multiple of three is too long."""

    def __init__(self, args: Any) -> None:
        self.count = 0

    def get_samples(self, count: int) -> list[list[Sample]]:
        if self.count >= 6:
            return []
        self.count += 3
        return [[Sample(prompt="x" * (9 if n % 3 == 0 else 1))] for n in range(self.count - 3, self.count)]


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> UserDataSource:
    monkeypatch.setattr(user_data_source, "load_function", lambda path: Mine)
    return UserDataSource(DataSettings(data_source_path="m:Mine"), ArgsView({}), Letters(), 5)


def test_a_user_s_source_is_drawn_from_in_its_order(mine: UserDataSource) -> None:
    """Refused prompts do not count; what it gave at once and was not drawn is kept."""
    first = mine.take({}, 1)
    assert [(type(event), event.source.offset) for event in first] == [(PromptRejected, 0), (PromptSubmitted, 1)]
    assert {event.source.seen for event in first} == {1}, "also at the log's beginning it says that it follows from it"
    mine.position = 9
    second = mine.take({"m:Mine": 2}, 2)
    assert [(event.source.offset, event.source.seen) for event in second] == [(2, 9), (3, 9), (4, 9)]
    assert [event.source.offset for event in mine.take({"m:Mine": 5}, 9)] == [5], "it has no more"


def test_a_feed_tells_the_source_how_far_the_log_was_read(tmp_path: Path, mine: UserDataSource) -> None:
    feed = PromptFeed(None, {}, DataSettings(), Letters(), mine)
    last = Driver(make_plan()).log[-1]
    feed.observe(last)
    assert {event.source.seen for event in feed.take({}, 1)} == {last.position}


@pytest.mark.parametrize("agents", [True, False])
def test_a_source_s_generate_function_is_not_left_out_silently(monkeypatch: pytest.MonkeyPatch, agents: bool) -> None:
    """Agents make the rollouts of a run: the function would never be called."""

    class Own(Mine):
        def get_samples(self, count: int) -> list[list[Sample]]:
            return [[Sample(prompt="x", generate_function_path="own.py:generate")]]

    monkeypatch.setattr(user_data_source, "load_function", lambda path: Own)
    monkeypatch.setattr(prompts, "load_tokenizer", lambda folder: Letters())
    data = DataSettings(data_source_path="m:Own")
    feed = PromptFeed.open(data, EvalSettings(), RolloutSettings(agents=agents), "")
    if agents:
        with pytest.raises(PlugPointError, match=r"own\.py:generate"):
            feed.take({}, 1)
    else:
        (drawn,) = feed.take({}, 1)
        assert isinstance(drawn, PromptSubmitted)
        assert drawn.generate_function_path == "own.py:generate"


def rows_of(tmp_path: Path, count: int) -> PromptSource:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"input": "p{n}"}}\n' for n in range(count)))
    return PromptSource(DataSettings(prompt_data=str(path)), 0, Letters(), None)


def archive_of(*rates: tuple[int, int], **prompt: Any) -> ArchivedPrompts:
    """A prompt for each (passed, answers)."""
    fields: dict[str, Any] = {"group": "g", "text": "?", "tokens": pack_tokens([1]), "source": Source(path="there")}
    rows = [
        ArchivedPrompt(PromptSubmitted(**(fields | prompt)), position=1, groups=[f"g{n}"], passed=p, answers=a)
        for n, (p, a) in enumerate(rates)
    ]
    return ArchivedPrompts("arch", 9, rows, list(range(len(rows))))


def sampler(source: PromptSource | None, archive: ArchivedPrompts | None, seed: int = 1, **data: Any) -> PromptSampler:
    return PromptSampler(DataSettings(**data), seed, source, archive, Letters(), None, DrawStats())


def test_new_rows_are_those_that_were_never_drawn(tmp_path: Path) -> None:
    source = rows_of(tmp_path, 4)
    drawn = sampler(source, None, prompt_sampler="curriculum", curriculum_new=1.0)
    assert [event.source.row for event in drawn.take({}, 5)] == [0, 1, 2, 3, 0]
    drawn.draws.of(source.url, 1).times = 1
    assert drawn.take({}, 1)[0].source.row == 2


def test_what_was_drawn_here_and_not_answered_yet_keeps_its_rate_of_there() -> None:
    seed = next(seed for seed in range(99) if 0.3 < uniform(seed, "again", 0) < 0.45)
    drawn = sampler(None, archive_of((8, 8), (1, 2)), seed)
    drawn.draws.by_path["arch"] = {0: PromptStats(times=1, version=-9)}
    assert drawn.take({}, 1)[0].source.row == 1, "the other is hardly worth a draw"


def test_what_rests_is_not_drawn_until_nothing_else_is_left() -> None:
    drawn = sampler(None, archive_of((1, 2), (1, 2)), prompt_rest=3)
    drawn.draws.version = 5
    drawn.draws.by_path["arch"] = {0: PromptStats(times=1, version=4, passed=1, answers=2)}
    for offset in range(20):
        assert drawn.take({"arch": offset}, 1)[0].source.row == 1
    drawn.draws.by_path["arch"][1] = PromptStats(times=1, version=5, is_open=True)
    assert drawn.take({}, 1)[0].source.row == 0, "which was drawn longest ago"


def test_a_chat_of_an_archive_is_rendered() -> None:
    (drawn,) = sampler(None, archive_of((1, 2), messages=[{"role": "user", "content": "hi"}])).take({}, 1)
    assert isinstance(drawn, PromptSubmitted)
    assert (drawn.text, drawn.source.key, drawn.source.seen) == ("<user>hi", "g0", 1)


def test_a_file_in_its_order_needs_no_sampler(tmp_path: Path) -> None:
    source = rows_of(tmp_path, 1)
    for sampler_name, archive, there in (
        ("file", None, False),
        ("curriculum", None, True),
        ("file", archive_of(), True),
    ):
        data = DataSettings(prompt_sampler=sampler_name)  # type: ignore[arg-type]
        assert (make_prompt_sampler(data, 1, source, archive, Letters(), None) is not None) is there
    assert make_prompt_sampler(DataSettings(), 1, None, None, Letters(), None) is None
