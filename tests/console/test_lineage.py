"""*Lineage*: a version back to its prompt lines, what samples touched, and the command that leaves them out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.errors import BadQuery
from schemas.prompts import Source
from serve_apps.http.console.touched import Subject, drop_of
from slime_events.analysis.lineage.lineage import Kind, LineageQuery
from slime_events.analysis.lineage.resolve import lineage
from slime_events.analysis.query.open_tables import samples_where
from tests import made
from tests.cli.small_run import BATCHES, GROUPS, REJECTED, RUN
from tests.console.served import URL, Memory, client_of, get
from tests.lineage import opened
from tests.lineage.long import step_events

pytestmark = pytest.mark.asyncio(loop_scope="package")
LINE = "train.jsonl:1"
OF_LINE = [group for group in GROUPS if not group.startswith("inbox")]


async def test_the_versions_the_sources_and_the_graders(client: httpx.AsyncClient) -> None:
    answer = await get(client, f"{URL}/versions")
    assert answer["columns"]["version"] == [2, 1]
    assert answer["columns"]["weights_digest"] == ["d2", "d1"]
    sources = answer["sources"]
    counts = zip(sources["source"], sources["samples"], sources["trained"], sources["first_version"], strict=True)
    assert list(counts) == [("inbox", 2, 2, 2), ("train.jsonl", 8, 6, 1)]
    graders = answer["graders"]
    assert (graders["grader"], graders["samples"], graders["trained"]) == (["exact"], [10], [8])


@pytest.mark.parametrize("version", [1, 2])
async def test_a_version_goes_back_to_its_prompt_lines(client: httpx.AsyncClient, version: int) -> None:
    answer = await get(client, f"{URL}/versions/{version}")
    assert (answer["version"], answer["made_by"], answer["step"], answer["newest"]) == (version, RUN, version - 1, 2)
    prompts = {prompt["group"]: prompt for prompt in answer["prompts"]}
    assert tuple(prompts) == BATCHES[version - 1]
    batch = await lineage(await opened.small(), LineageQuery(kind=Kind.STEP, value=str(version - 1)))
    shown = [rollout["sample"] for prompt in answer["prompts"] for rollout in prompt["rollouts"]]
    assert shown == list(batch.steps[0].samples)
    rewards = [rollout["reward"] for prompt in answer["prompts"] for rollout in prompt["rollouts"]]
    assert rewards == [0.0, 1.0, 0.0, 1.0]
    if version == 2:
        assert [prompts[group]["subject"] for group in BATCHES[1]] == ["inbox:k1", LINE]
        assert prompts[GROUPS[3]]["rollouts"][1]["made_by"] == "v0[0:2] v1[2:3]"
    else:
        assert answer["descendants"] == [{"run": RUN, "first": 2, "last": 2}]
    assert shlex.split(answer["source"]["command"]) == ["slime-events", "lineage", RUN, "--version", str(version)]


async def test_the_first_version_has_no_step(client: httpx.AsyncClient) -> None:
    answer = await get(client, f"{URL}/versions/0")
    assert (answer["step"], answer["reward_mean"], answer["prompts"], answer["ancestors"]) == (None, None, [], [])
    assert answer["view"]["activations"][0]["version"] == 0


@pytest.mark.parametrize(
    ("query", "groups", "versions"),
    [
        ({"sample": f"{GROUPS[3]}-s1"}, [GROUPS[3]], [2]),
        ({"group": GROUPS[0]}, [GROUPS[0]], [1]),
        ({"source": LINE}, OF_LINE, [1, 2]),
        ({"source": "inbox:k1"}, [GROUPS[3]], [2]),
        ({"source": "inbox"}, [GROUPS[3]], [2]),
        ({"group": REJECTED}, [REJECTED], []),
    ],
)
async def test_what_samples_touched_and_how_to_leave_them_out(
    client: httpx.AsyncClient, query: dict[str, str], groups: list[str], versions: list[int]
) -> None:
    touched = (await get(client, f"{URL}/touched", **query))["touched"]
    assert [version["version"] for version in touched["versions"]] == versions
    assert sum(version["samples"] for version in touched["versions"]) == touched["trained"]
    assert {sample["group"] for sample in touched["listed"]} == set(groups)
    assert touched["derived"] == ([{"run": RUN, "first": 2, "last": 2}] if versions[:1] == [1] else [])
    # the query selects these samples and no other
    dropped = await samples_where(await opened.small(), touched["drop"])
    assert sorted(dropped) == sorted(sample["sample"] for sample in touched["listed"])
    commands = [shlex.split(command) for command in touched["commands"]]
    expected = ["slime-events", "retrain", RUN, "--branch", "NAME", "--drop", touched["drop"]]
    assert commands == ([expected] if versions else [])


async def test_what_a_version_of_a_grader_touched(client: httpx.AsyncClient) -> None:
    graders = (await get(client, f"{URL}/versions"))["graders"]
    asked = {"grader": graders["grader"][0], "digest": graders["grader_digest"][0]}
    answer = await get(client, f"{URL}/touched", **asked)
    touched = answer["touched"]
    assert (touched["samples"], touched["trained"]) == (10, 8)
    assert [(version["version"], version["samples"]) for version in touched["versions"]] == [(1, 4), (2, 4)]
    assert touched["derived"] == [{"run": RUN, "first": 2, "last": 2}]
    dropped = await samples_where(await opened.small(), touched["drop"])
    assert sorted(dropped) == sorted(sample["sample"] for sample in touched["listed"] if sample["step"] is not None)
    assert shlex.split(answer["source"]["command"])[:3] == ["slime-events", "query", RUN]


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("versions/3", {}, 404),
        ("versions/-1", {}, 404),
        ("versions/x", {}, 422),
        (f"versions/{10**40}", {}, 404),
        ("touched", {}, 400),
        ("touched", {"digest": "ab"}, 400),
        ("touched", {"sample": "a-s0", "group": "a"}, 400),
        ("touched", {"sample": "none-s0"}, 404),
        ("touched", {"sample": "'; DROP TABLE samples; --"}, 404),
        ("touched", {"sample": "../../etc/passwd"}, 404),
        ("touched", {"sample": "\u202e\x00"}, 404),
        ("touched", {"group": "a/b' OR true --"}, 404),
        ("touched", {"group": "*"}, 404),
        ("touched", {"group": ">"}, 404),
        ("touched", {"source": "' OR true --"}, 404),
        ("touched", {"source": "train.jsonl:99"}, 404),
        ("touched", {"grader": "exact"}, 404),
        ("touched", {"grader": "exact' OR true --", "digest": "' OR true --"}, 404),
    ],
)
async def test_hostile_and_unknown_ids_are_refused(
    client: httpx.AsyncClient, path: str, query: dict[str, str], status: int
) -> None:
    answer = await client.get(f"{URL}/{path}", params=query)
    assert (answer.status_code, isinstance(answer.json()["error"], str)) == (status, True)


async def test_hostile_sources_and_keys_stay_texts() -> None:
    """Names of files, keys and graders with quotes, spaces and line ends select themselves alone."""
    path, key, grader = "a'; DROP TABLE prompts; --\n.jsonl", "k' OR '1'='1", "g' OR true --\n$(id)"
    events: list[Any] = [made.started()]
    sources = (
        Source(path=path, line=1, offset=0),
        Source(path="inbox", key=key),
        Source(path="b.jsonl", line=1, offset=0),
    )
    for number, source in enumerate(sources):
        group = f"g{number}"
        events += [
            made.submitted(group, source=source),
            made.requested(f"{group}-s0"),
            made.completed(f"{group}-s0", [1], [-0.5], length=1),
            made.assigned(f"{group}-s0", value=1.0, grader=grader if group != "g2" else "exact", grader_digest="ab"),
        ]
    run = await opened.opened(events, "r")
    async with client_of(Memory({"r": run})) as client:
        for query, group in (({"source": f"{path}:1"}, "g0"), ({"source": f"inbox:{key}"}, "g1")):
            touched = (await get(client, "/api/runs/r/touched", **query))["touched"]
            assert await samples_where(run, touched["drop"]) == [f"{group}-s0"]
        touched = (await get(client, "/api/runs/r/touched", grader=grader, digest="ab"))["touched"]
        assert [sample["sample"] for sample in touched["listed"]] == ["g0-s0", "g1-s0"]
        assert touched["commands"] == []


async def test_a_branch_goes_back_into_its_parent(tmp_path: Path) -> None:
    where = await opened.archived_parent(tmp_path)
    published = await (await opened.small()).log.last(f"slime.{RUN}.weights.published.1")
    assert published is not None
    events = [*opened.branch(where, version=1, position=published.position), *step_events(1, "train-1-000001")]
    child = await opened.opened(events, "child")
    url = "/api/runs/child"
    async with client_of(Memory({"child": child})) as client:
        first = await get(client, f"{url}/versions/0")
        assert (first["made_by"], first["view"], first["digest"]) == (RUN, None, "d0")
        second = await get(client, f"{url}/versions/2")
        assert second["ancestors"] == [{"run": RUN, "first": 0, "last": 1}]
        touched = (await get(client, f"{url}/touched", sample=f"{GROUPS[0]}-s1"))["touched"]
    assert touched["derived"] == [{"run": "child", "first": 2, "last": 2}]
    command = shlex.split(touched["commands"][0])
    assert command[:3] == ["slime-events", "retrain", where]  # the parent's log has the sample


async def test_a_request_names_one_subject() -> None:
    nothing = dict.fromkeys(("sample", "group", "source", "grader", "digest"), "")
    assert Subject.of(**(nothing | {"group": "a"})) == Subject(Kind.GROUP, "a")
    with pytest.raises(BadQuery):
        Subject.of(**nothing)
    assert drop_of(Subject(Kind.SAMPLE, "it's"), ()) == "SELECT sample FROM samples WHERE sample = 'it''s'"
