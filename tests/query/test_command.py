"""`slime-events query`: rows as a table, CSV, JSON and Parquet; what it lists; what it refuses."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pyarrow.csv
import pyarrow.parquet
import pytest

from schemas.errors import BadQuery, ImpossibleCombination, InvalidValue
from slime_events.analysis.query.tables import TABLES
from slime_events.app.cli.commands import query as query_command
from tests.cli.invoke import command
from tests.cli.small_run import GROUPS
from tests.lineage.opened import archived_parent

ASKED = (
    "SELECT sample, index, tokens, reward, spans, reward_detail, completed FROM samples "
    f"WHERE group_id = '{GROUPS[3]}' ORDER BY index"
)


query = command("query")


@pytest.fixture
async def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The small run, archived."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    return await archived_parent(tmp_path)


def test_a_table_counts_its_rows(where: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        query([where, "SELECT sample, index, text, tokens / 7 AS share FROM samples ORDER BY sample", "--rows", "2"])
        == 0
    )
    assert capfd.readouterr().out.splitlines() == [
        "sample       index  text    share",
        "inbox-aa-s0      0  is 42  0.4286",
        "inbox-aa-s1      1  is 42  0.4286",
        "(10 rows, 2 shown: --rows 0 shows all)",
    ]


LONG = f"SELECT '{'a' * 300}' AS long, 1 AS one"


def test_a_table_fits_the_terminal(
    where: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_command, "terminal_width", lambda: 100)
    query([where, LONG])
    lines = capfd.readouterr().out.splitlines()
    assert max(map(len, lines)) == 100
    assert lines[1].endswith("…   1")


def test_a_piped_table_is_whole(where: str, capfd: pytest.CaptureFixture[str]) -> None:
    query([where, LONG])
    assert "a" * 300 in capfd.readouterr().out
    query([where, "FROM steps"])
    assert len(capfd.readouterr().out.splitlines()) == 1 + 2 + 1


def test_more_columns_than_fit_stand_below_each_other(
    where: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_command, "terminal_width", lambda: 100)
    query([where, "--runs-dir", "anywhere", "FROM steps"])
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("─ row 1 ─")
    assert "metrics           {loss: 0.5}" in lines
    assert lines[-1] == "(2 rows)"


def test_json_nests_what_is_nested(where: str, capfd: pytest.CaptureFixture[str]) -> None:
    query([where, ASKED, "--format", "json"])
    rows = msgspec.json.decode(capfd.readouterr().out)
    assert rows[1] == {
        "sample": "inbox-aa-s1",
        "index": 1,
        "tokens": 3,
        "reward": 1.0,
        "spans": [{"start": 0, "end": 2, "version": 0}, {"start": 2, "end": 3, "version": 1}],
        "reward_detail": {"found": "42"},
        "completed": rows[1]["completed"],
    }
    query([where, "FROM chunks WHERE tokens > 5", "--format", "json"])
    assert msgspec.json.decode(capfd.readouterr().out) == []


def test_csv_has_a_head_and_nests_as_json(where: str, capfd: pytest.CaptureFixture[str]) -> None:
    query([where, ASKED, "--format", "csv"])
    rows_ = pyarrow.csv.read_csv(io.BytesIO(capfd.readouterr().out.encode())).to_pylist()
    assert (rows_[0]["sample"], rows_[0]["tokens"]) == ("inbox-aa-s0", 3)
    assert msgspec.json.decode(rows_[1]["spans"])[1] == {"start": 2, "end": 3, "version": 1}


def test_parquet_goes_to_a_file(where: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.parquet"
    (tmp_path / "asked.sql").write_text(ASKED)
    query([where, "--file", str(tmp_path / "asked.sql"), "--format", "parquet", "--out", str(out)])
    assert pyarrow.parquet.read_table(out).column("reward").to_pylist() == [0.0, 1.0]
    query([where, "FROM chunks WHERE tokens > 5", "--format", "parquet", "--out", str(out)])
    assert pyarrow.parquet.read_table(out).num_rows == 0


def test_a_query_that_fails_leaves_the_file_as_it_was(where: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    out.write_text("before")
    with pytest.raises(BadQuery):
        query([where, "SELECT text::INTEGER FROM samples", "--format", "csv", "--out", str(out)])
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.glob("*rows*")) == ["rows.csv"]


def test_what_it_lists(capsys: pytest.CaptureFixture[str]) -> None:
    query(["any", "--tables"])
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [table.name for table in TABLES]
    query(["any", "--schema", "evals"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["tokens_mean", "DOUBLE", "mean", "response", "length", "[tokens]"] in rows


def test_what_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"no table eval\. Did you mean evals"):
        query(["any", "--schema", "eval"])
    with pytest.raises(InvalidValue, match="cannot be read"):
        query(["any", "--file", str(tmp_path / "none.sql")])
    for words in ([], ["SELECT 1", "--file", "-"]):
        with pytest.raises(ImpossibleCombination, match="not both"):
            query(["any", *words])
