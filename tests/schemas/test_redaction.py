"""`redact`: no secret is left in a text, and what is none stays."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import LogUnavailable, SlimeEventsError
from schemas.redaction import MASK, known_secrets, redact

SECRETS = st.text(string.ascii_letters + string.digits + "-._~!*+/=%", min_size=17, max_size=40)
FORMS = (
    "no NATS server answered at nats://me:{}@10.0.0.1:4222 within 5 s",
    "nats://{}@host",
    "https://{}@host/path",
    "s3://key:{}@bucket/folder",
    "nats://a:{}@one:4222,nats://b:{}@two:4222",
    "simplecache::ftp://me:{}@host/file",
    "GET /x?api_key={}&page=2",
    "https://host/object?X-Amz-Signature={}&X-Amz-Date=1",
    "Authorization: Bearer {}",
    "headers={{'authorization': 'Basic {}', 'accept': '*/*'}}",
    "ServerArgs(api_key='{}', port=1)",
    '{{"secret": "{}", "n": 1}}',
    "AWS_SECRET_ACCESS_KEY={}",
    "x-api-key: {}",
)


@given(st.sampled_from(FORMS), SECRETS, st.text(), st.text())
def test_a_secret_is_gone_wherever_it_stands(form: str, secret: str, before: str, after: str) -> None:
    if "&" in form or "://" in form:
        secret = secret.replace("%", "p").replace("/", "s")
    secret = "Q7" + secret  # no port, and no word of the text around it
    shown = redact(f"{before} {form.format(secret, secret)} {after}")
    assert secret not in shown.replace(f"{before} ", "", 1)
    assert MASK in shown


@given(st.text(), st.sets(st.text(min_size=6), max_size=3))
def test_redacting_again_changes_nothing(text: str, secrets: set[str]) -> None:
    once = redact(text, {secret for secret in secrets if secret not in MASK and MASK not in secret})
    assert redact(once) == redact(redact(once))


@given(st.text(), SECRETS)
def test_what_is_known_is_found_in_any_form(text: str, secret: str) -> None:
    assert secret not in redact(f"{text}<<{secret}>>", [secret])


@pytest.mark.parametrize(
    "text",
    [
        "position 7509: not an event",
        "http://127.0.0.1:8000/file.jsonl@[0:10]",
        "sftp://me@host/file: no such file",
        "nats://me:${NATS_PASSWORD}@host is away",
        "max_tokens=64, input_key=x, label_key='y', key=3",
        "password authentication failed",
        "tokens: 5, the bearer of news",
        "s3://bucket/archive/demo/manifest/00000001.json",
        "user@host: ~/slime-runs",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_a_password_may_hold_what_a_url_may_not() -> None:
    assert redact("at nats://u:p@ss:w@h:1/x, s3://K:ab/c+d@b") == "at nats://u:***@h:1/x, s3://K:***@b"


ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": "/begins-with-a-slash",
    "AWS_ACCESS_KEY_ID": "planted-id",
    "AWS_REGION": "eu-central-1",
    "AWS_PROFILE": "research",
    "HF_TOKEN": "planted-hf",
    "WANDB_API_KEY": "planted-wandb",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20planted-otlp,x-api-key=planted-header",
    "FSSPEC_S3": '{"key": "planted-fsspec", "secret": "planted-fsspec-2", "endpoint_url": "http://here:1"}',
    "NATS_URL": "nats://me:planted-nats@host:4222",
    "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
    "SSH_AUTH_SOCK": "/tmp/agent.sock",
    "TOKENIZERS_PARALLELISM": "false-as-usual",
    "DB_PASSWORD": "short",
}


def test_the_secrets_of_an_environment() -> None:
    planted = {"planted-id", "planted-hf", "planted-wandb", "planted-otlp", "Bearer planted-otlp", "planted-header"}
    planted |= {"planted-fsspec", "planted-fsspec-2", "planted-nats", "/begins-with-a-slash"}
    assert known_secrets(ENVIRONMENT) == planted


def test_no_error_says_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "planted-hf")
    error = LogUnavailable("nats://me:hidden@host refused planted-hf")
    assert str(error) == "nats://me:***@host refused ***"
    assert f"{SlimeEventsError(error)}" == str(error)
