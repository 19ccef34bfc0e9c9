"""The console's routes: types and fields of every answer, pages by key, and what is refused."""

from __future__ import annotations

import json
import shlex
from typing import Any

import httpx
import numpy as np
import pytest

from schemas.errors import BadQuery
from serve_apps.http.console.rows import Order, condition, literal
from serve_apps.http.console.views.samples import ORDERS, chosen
from slime_events.analysis.query import tables_of
from slime_events.analysis.rescore.filter_trial import NAMES, NONE
from slime_events.plugins.filters.dynamic_sampling import FILTERS
from slime_events.plugins.loader import load_function
from tests.cli.small_run import ENGINE, GROUPS, REJECTED, RUN
from tests.console.served import URL, client_of, get, small
from tests.lineage import opened

SAMPLE = f"{GROUPS[3]}-s1"


pytestmark = pytest.mark.asyncio(loop_scope="package")


async def refusal(client: httpx.AsyncClient, path: str, **query: Any) -> int:
    """The status of a request that is refused with a reason."""
    answer = await client.get(path, params=query)
    assert isinstance(answer.json()["error"], str)
    return answer.status_code


async def test_the_runs(client: httpx.AsyncClient) -> None:
    answer = await get(client, "/api/runs")
    assert answer["runs"] == [{"run": RUN, "status": "finished", "steps": 2, "target": 2, "at": 1.5, "reason": ""}]
    state = await get(client, URL)
    assert state["run"] == RUN
    assert state["position"] == state["end"] > 0
    assert state["on"] is False


async def test_a_page_of_samples_is_that_of_its_query(client: httpx.AsyncClient) -> None:
    page = await get(client, f"{URL}/samples", limit=3, order="-reward")
    rows = len(page["columns"]["sample"])
    assert rows == 3
    assert {len(values) for values in page["columns"].values()} == {3}
    async with tables_of(await opened.small()) as tables:
        again = (await tables.sql(page["source"]["sql"])).arrow().to_pydict()
    assert again == page["columns"]
    assert shlex.split(page["source"]["command"]) == ["slime-events", "query", RUN, page["source"]["sql"]]


@pytest.mark.parametrize("order", [sign + name for name in ORDERS for sign in ("", "-")])
async def test_pages_together_are_every_sample_once_and_in_order(client: httpx.AsyncClient, order: str) -> None:
    samples: list[str] = []
    keys: list[float | None] = []
    cursor: dict[str, str] = {}
    while True:
        page = await get(client, f"{URL}/samples", order=order, limit=3, **cursor)
        samples += page["columns"]["sample"]
        keys += page["columns"][order.removeprefix("-")]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert sorted(samples) == sorted(f"{group}-s{index}" for group in GROUPS for index in range(2))
    there = [key for key in keys if key is not None]
    assert there == sorted(there, reverse=order.startswith("-"))
    assert keys == there + [None] * (len(keys) - len(there))


async def test_filters_texts_and_conditions_narrow_the_page(client: httpx.AsyncClient) -> None:
    async def ids(**query: Any) -> list[str]:
        return list((await get(client, f"{URL}/samples", **query))["columns"]["sample"])

    assert await ids(filter=["reward:eq:1", "step:eq:0"]) == [f"{GROUPS[0]}-s1", f"{GROUPS[1]}-s1"]
    assert await ids(filter="step:null") == [f"{REJECTED}-s0", f"{REJECTED}-s1"]
    assert await ids(text=f"WHAT IS {GROUPS[3]}") == [f"{GROUPS[3]}-s0", f"{GROUPS[3]}-s1"]
    assert await ids(where="reward > 0.5 AND step = 1 -- the last") == [f"{GROUPS[3]}-s1", f"{GROUPS[4]}-s1"]


async def test_histograms_count_the_samples_under_the_filters(client: httpx.AsyncClient) -> None:
    every = await get(client, f"{URL}/facets")
    assert every["total"] == 2 * len(GROUPS)
    facets = {facet["column"]: facet for facet in every["facets"]}
    assert facets["reward"]["bars"] == [
        {"low": 0.0, "high": None, "count": 6},
        {"low": 1.0, "high": None, "count": 4},
    ]
    assert {bar["low"]: bar["count"] for bar in facets["verdict"]["bars"]} == {"accepted": 8, "rejected": 2}
    assert "purpose" not in facets  # one value
    fewer = await get(client, f"{URL}/facets", filter="verdict:eq:rejected")
    assert fewer["total"] == 2
    assert fewer["facets"] == []


async def test_curves_have_a_value_per_step(client: httpx.AsyncClient) -> None:
    answer = await get(client, f"{URL}/metrics")
    assert answer["steps"] == [0, 1]
    reward = next(band for band in answer["bands"] if band["name"] == "reward")
    assert reward["trained"]["p50"] == [0.5, 0.5]
    assert reward["all"]["p50"] == [0.0, 0.5]  # the rejected group counts at step 0
    assert reward["trained"]["mean"] == [0.5, 0.5]
    assert reward["all"]["mean"] == pytest.approx([1 / 3, 0.5])
    lines = {line["name"]: line["values"] for line in answer["lines"]}
    assert lines["accepted share"] == [2 / 3, 1.0]
    assert lines["loss"] == [0.5, 0.5]
    assert {len(values) for values in lines.values()} == {2}
    assert answer["trained_tokens"] == [24, 48]
    assert answer["seconds"] == sorted(answer["seconds"])


async def test_a_group_with_its_decision(client: httpx.AsyncClient) -> None:
    answer = await get(client, f"{URL}/groups/{REJECTED}")
    group = answer["group"]
    assert (group["group"], group["step"], group["decision"]["accepted"]) == (REJECTED, None, False)
    assert [sample["sample"] for sample in group["samples"]] == [f"{REJECTED}-s0", f"{REJECTED}-s1"]
    assert group["prompt"]["tokens"] == {"dtype": "int32", "n": 3}
    assert shlex.split(answer["source"]["command"]) == ["slime-events", "show", RUN, "--group", REJECTED]


@pytest.mark.parametrize("name", NAMES)
async def test_another_filter_on_a_group(client: httpx.AsyncClient, name: str) -> None:
    for group in (REJECTED, GROUPS[3]):
        assert (await get(client, f"{URL}/groups/{group}"))["filters"] == list(NAMES)
        answer = await get(client, f"{URL}/filters/{name}/{group}")
        rejects = group == REJECTED and name != NONE
        assert (answer["trial"]["filter"], answer["trial"]["accepted"]) == (name, not rejects)
        if name == NONE:
            assert answer["command"] is None
        else:
            command = shlex.split(answer["command"])
            assert command[:4] == ["slime-events", "rescore", RUN, "--dynamic-sampling-filter-path"]
            assert load_function(command[4]) is FILTERS[name]


async def test_a_step_with_its_batch(client: httpx.AsyncClient) -> None:
    listed = await get(client, f"{URL}/steps")
    assert listed["columns"]["step"] == [0, 1]
    step = (await get(client, f"{URL}/steps/1"))["step"]
    assert (step["step"], step["version"], step["committed"]["weights_digest"]) == (1, 2, "d2")
    assert [sample["sample"] for sample in step["samples"]][1] == SAMPLE


async def test_a_rollout_and_its_siblings(client: httpx.AsyncClient) -> None:
    answer = await get(client, f"{URL}/rollouts/{SAMPLE}")
    sample = answer["sample"]
    assert (sample["sample"], sample["length"], sample["engine"], sample["tokens"]) == (SAMPLE, 3, ENGINE, [])
    assert sample["spans"] == [[0, 2, 0], [2, 3, 1]]
    assert answer["siblings"] == [f"{GROUPS[3]}-s0", SAMPLE]


async def test_tokens_are_arrays_at_multiples_of_eight(client: httpx.AsyncClient) -> None:
    frame = (await client.get(f"{URL}/tokens/{SAMPLE}")).content
    length = int.from_bytes(frame[:4], "little")
    head = json.loads(frame[4 : 4 + length])
    assert (head["sample"], head["n"], head["texts"]) == (SAMPLE, 3, [None] * 3)
    assert "--hf-checkpoint" in head["no_texts"]
    assert head["advantage"]["estimator"] == "grpo"
    arrays, at = {}, 4 + length
    for name, kind in head["arrays"].items():
        assert at % 8 == 0
        arrays[name] = np.frombuffer(frame, kind, head["n"], at).tolist()
        at += -(-np.dtype(kind).itemsize * head["n"] // 8) * 8
    assert at == len(frame)
    assert arrays == {
        "tokens": [10, 11, 12],
        "log_probs": [-0.5, -0.25, -0.125],
        "versions": [0, 0, 1],
        "trained": [1, 1, 1],
    }


async def test_changes_say_first_that_the_tables_are_computed() -> None:
    async with client_of(await small()) as new:
        text = (await new.get(f"{URL}/changes")).text
    states = [json.loads(event.partition("data: ")[2]) for event in text.split("\n\n")[:-1]]
    end = states[0]["end"]
    assert end > 0
    assert [(state.get("position"), state.get("end")) for state in states] == [(0, end), (end, end), (None, None)]


async def test_changes_end_with_the_run(client: httpx.AsyncClient) -> None:
    await client.get(URL)
    text = (await client.get(f"{URL}/changes")).text
    first, end, rest = text.split("\n\n")
    name, _, data = first.partition("\n")
    assert (name, end.partition("\n")[0], rest) == ("event: change", "event: end", "")
    assert json.loads(data.removeprefix("data: "))["run"] == RUN


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/api/runs/none/samples", {}, 404),
        ("/api/runs/..%2f..%2fetc/samples", {}, 404),
        ("/api/runs/%ED%A0%80/samples", {}, 404),
        ("/api/runs/none/changes", {}, 404),
        ("/api/nothing", {}, 404),
        ("/assets/..%2fapp.py", {}, 404),
        ("/assets/index.html", {}, 404),
        (f"{URL}/groups/none", {}, 404),
        (f"{URL}/groups/a/b'--", {}, 404),
        (f"{URL}/filters/none/none", {}, 404),
        (f"{URL}/filters/os:system/{REJECTED}", {}, 400),
        (f"{URL}/filters/os.system/{REJECTED}", {}, 400),
        (f"{URL}/filters/keep.py:keep/{REJECTED}", {}, 400),
        (f"{URL}/filters/slime_events.plugins.filters.dynamic_sampling:MIN_STD/{REJECTED}", {}, 400),
        (f"{URL}/filters/{'x' * 101}/{REJECTED}", {}, 422),
        (f"{URL}/times/none-s0", {}, 404),
        (f"{URL}/requests/none-s0", {}, 404),
        (f"{URL}/rollouts/none-s0", {}, 404),
        (f"{URL}/tokens/none-s0", {}, 404),
        (f"{URL}/steps/7", {}, 404),
        (f"{URL}/steps/x", {}, 422),
        (f"{URL}/samples", {"limit": 0}, 422),
        (f"{URL}/samples", {"limit": 1001}, 422),
        (f"{URL}/samples", {"cursor": "no cursor"}, 400),
        (f"{URL}/samples", {"cursor": "WzEsMl0"}, 400),
        (f"{URL}/samples", {"cursor": "[" * 3000}, 400),
        (f"{URL}/samples", {"order": "text"}, 400),
        (f"{URL}/samples", {"filter": "text:eq:a"}, 400),
        (f"{URL}/samples", {"filter": "reward:eq:much"}, 400),
        (f"{URL}/samples", {"filter": "verdict:lt:a"}, 400),
        (f"{URL}/samples", {"where": "nothing = 1"}, 400),
        (f"{URL}/samples", {"where": "true); DROP TABLE samples; --"}, 400),
        (f"{URL}/samples", {"where": "(SELECT count(*) FROM read_text('/etc/passwd')) > 0"}, 400),
    ],
)
async def test_what_is_not_there_or_not_valid(
    client: httpx.AsyncClient, path: str, query: dict[str, Any], status: int
) -> None:
    assert await refusal(client, path, **query) == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_a_console_only_reads(client: httpx.AsyncClient, method: str) -> None:
    assert (await client.request(method, f"{URL}/samples")).status_code == 405


async def test_a_text_stays_a_text_in_sql() -> None:
    assert literal("a'; DROP TABLE samples; --") == "'a''; DROP TABLE samples; --'"
    assert condition("verdict:eq:it's", {"verdict": False}) == "\"verdict\" = 'it''s'"
    assert chosen([]) == "true"
    with pytest.raises(BadQuery):
        Order.of("reward; DROP", ORDERS)
