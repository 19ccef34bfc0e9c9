"""*Rescore*: the report of the command under a change by names of ours; a user's code is never run."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
import pytest_asyncio

from schemas.prompts import PromptSubmitted
from slime_events.analysis.rescore.built_in import FILTER_NAMES
from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.rescore import rescore
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model.json_values import plain
from tests import made
from tests.compare.pairs import changed
from tests.console.served import Memory, client_of, get
from tests.rescore.recorded import NONZERO_STD, opened, record, settings, with_filter

pytestmark = pytest.mark.asyncio(loop_scope="module")
URL = "/api/runs/a/rescore"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> OpenedRun:
    own = with_filter(settings(), NONZERO_STD)
    return opened(await record(tmp_path_factory.mktemp("rescored"), own), own)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(run: OpenedRun) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(Memory({"a": run})) as made:
        yield made


async def test_without_a_choice_it_lists_them(client: httpx.AsyncClient) -> None:
    page = await get(client, URL)
    assert page["report"] is None
    assert tuple(page["choices"]["filters"]) == FILTER_NAMES
    assert page["choices"]["run"] == {"reward": "random", "filter": NONZERO_STD, "estimator": "grpo"}


@pytest.mark.parametrize(
    "chosen",
    [
        {"reward": "exact"},
        {"filter": "check_reward_nonzero_std_with_fallback"},
        {"estimator": "reinforce_plus_plus_baseline"},
        {"reward": "exact", "estimator": "gspo"},
    ],
)
async def test_the_report_is_that_of_the_command(
    client: httpx.AsyncClient, run: OpenedRun, chosen: dict[str, str]
) -> None:
    page = await get(client, URL, **chosen)
    words = shlex.split(page["command"])
    assert words[:3] == ["slime-events", "rescore", "a"]
    expected = await rescore(run, make_change(run.settings, words[3:]))
    assert page["report"] == msgspec.json.decode(msgspec.json.encode(plain(expected)))
    assert page["same"] is expected.is_same
    assert page["first_difference"] == expected.first_difference


@pytest.mark.parametrize("chosen", [{"reward": "remote_rm"}, {"filter": "os:system"}, {"estimator": "../grpo"}])
async def test_only_names_of_ours_are_taken(client: httpx.AsyncClient, chosen: dict[str, str]) -> None:
    assert (await client.get(URL, params=chosen)).status_code == 400


@pytest.mark.parametrize("own", ["filter", "post process", "prompt"])
async def test_a_function_of_the_user_is_not_run(tmp_path: Path, own: str) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    mine = f"{tmp_path / 'mine.py'}:mine"
    before = settings()
    simulation = await record(tmp_path, before)
    log = [recorded.envelope.event async for recorded in simulation.log.read()]
    match own:
        case "filter":
            before = with_filter(before, mine)
        case "post process":
            reward = msgspec.structs.replace(before.reward, custom_reward_post_process_path=mine)
            before = msgspec.structs.replace(before, reward=reward)
        case _:
            log = changed(log, PromptSubmitted, custom_rm_path=mine)
    run = made.opened(await made.log(*log, run="a"), before)
    async with client_of(Memory({"a": run})) as client:
        answer = await client.get(URL, params={"reward": "exact"})
    assert answer.status_code == 400
    assert not (tmp_path / "ran").exists()
