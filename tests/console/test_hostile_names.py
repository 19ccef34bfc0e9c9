"""Hostile names of runs, groups and samples, and half a character: refused or shown, and never another path."""

from __future__ import annotations

import base64
import os
import shlex
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from schemas.errors import RunNotFound
from slime_events.app.cli.console_runs import ServedRuns
from slime_events.core.run.run_folder import find_run
from tests.cli.small_run import GROUPS, RUN
from tests.console.served import URL, client_of

pytestmark = pytest.mark.asyncio(loop_scope="package")

REFUSED = [
    b"<img src=x onerror=alert(1)>", b"..%2f..%2fetc", b"%2e%2e", b'a"b', b"it's", b"a b", b"\xff\xfe", b"new\nline",
    b"C:\\run", b"$(id)", b"a?b#c&d=e", b"\x1b[31mred", "\u202eevil".encode(), b"%", b"%zz", b"a+b", b".hidden",
]  # fmt: skip
"""Names of folders that no run can have."""
LISTED = ["-rf", "--runs-dir", "__proto__", "constructor", "x" * 200]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of runs that somebody else filled."""
    for name in (*REFUSED, *map(os.fsencode, LISTED)):
        path = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name)))
        path.mkdir()
        (path / "settings.toml").write_text("")
    return tmp_path


async def test_folders_with_hostile_names_are_no_runs(folder: Path) -> None:
    source = ServedRuns(folder)
    async with client_of(source) as client:
        listed = (await client.get("/api/runs")).json()["runs"]
        assert sorted(run["run"] for run in listed) == sorted(LISTED)
        for name in (*REFUSED, b"..", b".", b"../a", b"/etc", b"\x00", "\ud800".encode(errors="surrogatepass")):
            for view in ("metrics", "samples", "groups/x", "rollouts/x"):
                answer = await client.get(f"/api/runs/{quote(name, safe='').replace('.', '%2e')}/{view}")
                assert answer.status_code == 404, name
    for name in map(os.fsdecode, REFUSED):
        with pytest.raises(RunNotFound):
            source.argument(name)


@pytest.mark.parametrize("name", LISTED)
async def test_a_command_never_reads_a_name_as_a_flag(folder: Path, name: str) -> None:
    first, *_ = shlex.split(ServedRuns(folder).argument(name))
    assert not first.startswith("-")
    assert find_run(first, folder).path == folder / name


SLASHES = ["%2F", "%2f", "%2F..%2F", "%2F%2E%2E%2F"]


@pytest.mark.parametrize("slash", SLASHES)
@pytest.mark.parametrize(
    "path", ["/api/runs/{run}{}samples", "/api/runs/{run}{}steps", "/api/runs/{run}/groups{}{group}", "/api{}runs"]
)
async def test_a_slash_in_a_name_is_never_another_path(client: httpx.AsyncClient, path: str, slash: str) -> None:
    answer = await client.get(path.format(slash, run=RUN, group=GROUPS[3]))
    assert (answer.status_code, list(answer.json())) == (404, ["error"])
    page = await client.get(f"/runs/{RUN}{slash}samples")
    assert page.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("key", [b'[null,1,"\\ud800"]', b'["\\ud800",1,"a"]', b'[1,"\\ud800","a"]'])
async def test_a_cursor_with_half_a_character_is_refused(client: httpx.AsyncClient, key: bytes) -> None:
    cursor = base64.urlsafe_b64encode(key).decode().rstrip("=")
    assert (await client.get(f"{URL}/samples", params={"cursor": cursor})).status_code == 400


HALF = "%ED%A0%80"
"""The bytes of a lone surrogate."""


@pytest.mark.parametrize(
    "query",
    [
        "samples?text={}", "samples?filter=label:eq:{}", "samples?where=text%3D%27{}%27", "facets?text={}",
        "versions?sample={}", "query?sql=SELECT%20%27{}%27%20AS%20a",
    ],
)  # fmt: skip
async def test_half_a_character_in_a_url_is_text(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"{URL}/{query.format(HALF)}")
    assert answer.status_code == 200
    answer.json()


@pytest.mark.parametrize("path", [f"groups/{HALF}", f"rollouts/{HALF}", f"touched?source={HALF}", f"moment?at={HALF}",
                                  f"tokens/{HALF}", "query?sql=SELECT%20chr(55296)"])  # fmt: skip
async def test_half_a_character_names_nothing(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(f"{URL}/{path}")
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]
