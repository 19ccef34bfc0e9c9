"""Secrets by reference: what is recorded has none, and what is used is what was given."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InvalidValue
from schemas.references import Concealer, expand, expand_all, references_in

WORDS = st.text(string.ascii_letters + string.digits + "-._~!*+=%@", min_size=1, max_size=20)
HOSTS = st.sampled_from(["h", "10.0.0.1:4222", "[::1]:4222", "bucket/folder"])
SCHEMES = st.sampled_from(["nats", "https", "s3", "simplecache::ftp"])


@given(SCHEMES, WORDS.map(lambda word: "u" + word.replace("@", "")), WORDS.map(lambda word: "q" + word), HOSTS)
def test_a_url_expands_to_what_was_given(scheme: str, user: str, secret: str, host: str) -> None:
    url, concealer = f"{scheme}://{user}:{secret}@{host}", Concealer()
    concealed = concealer.text(url, "--archive-url")
    assert concealed == f"{scheme}://{user}:${{SLIME_EVENTS_ARCHIVE_URL_PASSWORD}}@{host}"
    assert expand(concealed, concealer.secrets) == url
    assert Concealer().text(concealed, "archive_url") == concealed
    assert references_in({"run": [concealed]}) == set(concealer.secrets)


@given(st.text())
def test_what_is_no_url_stays(text: str) -> None:
    if "://" not in text and "${" not in text:
        assert Concealer().text(text, "rollout_stop") == text
        assert expand(text, {}) == text


def test_passwords_of_several_nodes_are_several_variables() -> None:
    concealer, urls = Concealer(), "nats://a:one@h:1,nats://b:two@h:2,nats://c:one@h:3"
    concealed = concealer.text(urls, "nats_url")
    assert concealer.secrets == {
        "SLIME_EVENTS_NATS_URL_PASSWORD": "one",
        "SLIME_EVENTS_NATS_URL_PASSWORD_2": "two",
    }
    assert expand(concealed, concealer.secrets) == urls


def test_a_setting_that_is_a_secret_by_its_name() -> None:
    concealer = Concealer()
    assert concealer.text("hidden", "--sglang-api-key") == "${SLIME_EVENTS_SGLANG_API_KEY}"
    assert concealer.text("${MINE}", "--sglang-api-key") == "${MINE}"
    assert concealer.text("prompt", "--input-key") == "prompt"
    assert expand_all({"api_key": "${SLIME_EVENTS_SGLANG_API_KEY}", "n": [1]}, concealer.secrets) == {
        "api_key": "hidden",
        "n": [1],
    }


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(InvalidValue, match="NATS_PASSWORD"):
        expand("nats://me:${NATS_PASSWORD}@host", {})


@pytest.mark.parametrize("text", ["${END}</s>", "$HOME/x", "<|${x}|>"])
def test_other_dollars_are_text(text: str) -> None:
    assert expand(text, {}) == text
    assert references_in(text) == set()
