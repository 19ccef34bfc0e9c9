"""Sources and their tokens: who is admitted, as long as they are, and what their file holds."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request

from schemas.errors import InvalidValue
from serve_apps.http.gateway.admission import Admission
from serve_apps.http.gateway.refusals import Refused
from serve_apps.http.gateway.sources import Scope, Source, Sources, scope_of
from serve_apps.rates import Rates


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


def file_of(folder: Path) -> Path:
    return folder / "gateway" / "sources.json"


def test_each_source_has_one_token(sources: Sources, tmp_path: Path) -> None:
    assert sources.names == []
    assert sources.admitted("") is None
    tokens = {name: sources.issue(name) for name in ("b", "a")}
    assert sources.names == ["a", "b"]
    for name, token in tokens.items():
        admitted = sources.admitted(token)
        assert admitted is not None
        assert admitted[0] == name
        assert admitted[1].sha256 == hashlib.sha256(token.encode()).hexdigest()
    sources.revoke("a")
    assert sources.names == Sources(tmp_path).names == ["b"]
    assert sources.admitted(tokens["a"]) is None
    assert sources.admitted(tokens["b"]) is not None


def test_its_folder_and_file_are_the_owner_s(sources: Sources, tmp_path: Path) -> None:
    sources.issue("a")
    assert file_of(tmp_path).parent.stat().st_mode & 0o777 == 0o700
    assert file_of(tmp_path).stat().st_mode & 0o777 == 0o600
    sources.issue("b")
    assert sources.names == ["a", "b"]
    new = Sources(tmp_path / "runs" / "new")
    new.issue("c")
    assert new.names == ["c"]


@pytest.mark.parametrize("name", ["", "a b", "a" * 33, "../a", "é"])
def test_a_name_is_plain(sources: Sources, name: str) -> None:
    with pytest.raises(InvalidValue):
        sources.issue(name)
    sources.issue("a" * 32)
    with pytest.raises(InvalidValue):
        sources.revoke("b")
    assert sources.names == ["a" * 32]


def test_one_a_minute_is_the_least(sources: Sources) -> None:
    sources.issue("a", per_minute=1)
    assert sources.rights("a").per_minute == 1
    with pytest.raises(InvalidValue):
        sources.issue("b", per_minute=0)
    assert sources.names == ["a"]


def test_the_file_is_read_again_when_another_process_has_written_it(sources: Sources, tmp_path: Path) -> None:
    sources.issue("a")
    assert sources.names == ["a"]
    other = Sources(tmp_path)
    token = other.issue("b")
    assert sources.admitted(token) is not None
    stat = os.stat(file_of(tmp_path))
    Sources(tmp_path).revoke("b")
    os.utime(file_of(tmp_path), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert sources.admitted(token) is None, "another file of the same time"
    file_of(tmp_path).unlink()
    assert sources.names == []


def test_it_is_not_read_while_it_is_the_same(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    token = sources.issue("a")
    assert sources.admitted(token) is not None
    monkeypatch.setattr(sources, "_from_file", None)
    assert sources.admitted(token) is not None


def test_a_damaged_file_admits_nobody(sources: Sources, tmp_path: Path) -> None:
    token = sources.issue("a")
    for damaged in ("{", '{"a": 1}', '{"a": {"sha256": "x", "more": 1}}'):
        file_of(tmp_path).write_text(damaged)
        with pytest.raises(InvalidValue):
            Sources(tmp_path).admitted(token)


def test_only_limits_make_more_of_it_than_a_digest(sources: Sources, tmp_path: Path) -> None:
    sources.issue("all")
    sources.issue("some", [Scope.PROMPTS])
    sources.issue("slow", per_minute=2)
    kept = json.loads(file_of(tmp_path).read_text())
    assert isinstance(kept["all"], str)
    assert kept["some"]["may"] == ["prompts"]
    assert kept["slow"]["per_minute"] == 2
    assert Sources(tmp_path).rights("some").allows(Scope.PROMPTS)
    assert not Sources(tmp_path).rights("some").allows(Scope.REWARDS)


@pytest.mark.parametrize(
    ("source", "limits"),
    [
        (Source(""), ""),
        (Source("", may=(Scope.PROMPTS, Scope.REWARDS)), "prompts rewards"),
        (Source("", per_minute=2), "2 requests a minute"),
        (Source("", may=(Scope.PROMPTS,), per_minute=2), "prompts, 2 requests a minute"),
    ],
)
def test_limits_in_words(source: Source, limits: str) -> None:
    assert source.limits == limits


def test_a_scope_is_one_of_few() -> None:
    assert [scope_of(scope.value) for scope in Scope] == list(Scope)
    with pytest.raises(InvalidValue):
        scope_of("everything")


def request(token: str | None, scheme: str = "Bearer") -> Request:
    headers = [] if token is None else [(b"authorization", f"{scheme} {token}".encode())]
    return Request({"type": "http", "method": "GET", "headers": headers, "state": {}})


def refused(admission: Admission, request: Request, scope: Scope | None = None) -> Refused:
    with pytest.raises(Refused) as error:
        admission.by_bearer(request, scope)
    return error.value


def test_a_bearer_is_admitted_for_what_its_token_is_for(sources: Sources) -> None:
    token = sources.issue("a", [Scope.PROMPTS])
    admission = Admission(sources)
    for scheme in ("Bearer", "bearer"):
        request_ = request(token, scheme)
        assert admission.by_bearer(request_, Scope.PROMPTS) == admission.by_bearer(request_) == "a"
        assert request_.state.who == "a"
    for wrong in (request(None), request("x"), request(token, "Basic"), request("")):
        error = refused(admission, wrong)
        assert (error.status, error.headers) == (401, {"WWW-Authenticate": "Bearer"})
    other = request(token)
    assert refused(admission, other, Scope.REWARDS).status == 403
    assert other.state.who == "a", "the log says of whom"


def test_a_bearer_that_comes_too_often_is_told_when(sources: Sources) -> None:
    now = 0.0
    admission = Admission(sources, Rates(lambda: now))
    request_ = request(sources.issue("a", per_minute=7))
    for _ in range(7):
        admission.by_bearer(request_)
    error = refused(admission, request_)
    assert (error.status, error.headers) == (429, {"Retry-After": str(math.ceil(60 / 7))})
    now += float(error.headers["Retry-After"])
    admission.by_bearer(request_)


def test_a_token_holds_until_it_ends(sources: Sources, tmp_path: Path) -> None:
    admission, request_ = Admission(sources), request(sources.issue("a", per_minute=1))
    for _ in range(3):
        assert admission.holds(request_, "a"), "it is no request of its own"
    assert not admission.holds(request_, "b")
    assert not admission.holds(request("x"), "a")
    file_of(tmp_path).write_text("{")
    assert admission.holds(request_, "a") is False
    sources.issue("a") if sources._file.unlink() is None else None
    assert not admission.holds(request_, "a")


def test_whoever_has_the_old_file_is_admitted(tmp_path: Path) -> None:
    digest: dict[str, Any] = {"a": hashlib.sha256(b"t").hexdigest()}
    file_of(tmp_path).parent.mkdir()
    file_of(tmp_path).write_text(json.dumps(digest))
    admitted = Sources(tmp_path).admitted("t")
    assert admitted == ("a", Source(digest["a"]))
