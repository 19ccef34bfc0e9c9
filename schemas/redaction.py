"""Find and remove secrets in texts: `redact` for messages, logs and everything else that people see.

Settings hold no secrets (schemas/references.py). A secret in a text comes from a message of another package, an
environment variable, or a record of an older version.

The text may come from anyone, so each pattern takes time linear in its length: no pattern scans the same characters
from several starts. `tests/schemas/test_redaction_time.py` measures each pattern.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote

MASK = "***"
LEAST = 6
"""Fewest characters of a secret from the environment: a shorter value occurs in ordinary words."""

_SECRET_NAME = re.compile(
    r"^(AWS|NATS)_|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY"
    r"|(^|_)(TOKENS?|KEYS?|CREDS?|PASS|PAT|AUTH|HEADERS)(_|$)|_PWD$"
)
_ANY_LOGIN = re.compile(r"://[^/\s]*@")
"""`https://user:password@host` in a value."""

_SECRET_VALUE = re.compile(r"SECRET|PASSW|PASSPHRASE|(^|_)(TOKEN|KEY|KEY_ID|PASS|PAT|AUTH|CREDENTIALS?)$|APIKEY|_PWD$")
_NO_VALUE = re.compile(r"(_FILE|_PATH|_DIR|_SOCK|_URL)$")

_REFERENCE = r"\$\{[A-Za-z_]\w*\}"
_STOP = r"\s\"'<>"
URL_LOGIN = re.compile(
    rf"(?P<before>[\w+.-]://[^{_STOP}/?#@:\[\]]*:)(?!\d{{1,5}}(?:[/?#,{_STOP}]|$))"
    rf"(?P<secret>[^{_STOP}/?#]*|[^{_STOP}@]*)(?=@)"
)
"""The password of `scheme://user:password@host`. Unescaped it may contain `@`, and `/` if nothing else ends it.
Use it through `secrets_in` or `substitute`, which skip text without a later `@`: the pattern would scan it in vain.
"""
_WORD = re.compile(rf"[^{_STOP}]+")
URL_TOKEN = re.compile(
    rf"(?P<before>\b(?:nats|tls|wss?|https?)://)(?P<secret>[^{_STOP}/?#@:\[\]]+)(?=@)",
    re.IGNORECASE,
)
"""A token before the host. In other schemes, such as sftp, a name without a password is a user name."""
_NAME = (
    r"[\w.-]*(?:secret|passw(?:or)?d|passphrase|api[-_.]?key|access[-_.]?key(?:[-_.]?id)?|token|credential|signature)"
)
URL_QUERY = re.compile(rf"(?P<before>[?&;](?:{_NAME}|sig|key|auth)=)(?P<secret>[^&#{_STOP}]+)", re.IGNORECASE)
_PAIR = re.compile(
    rf"(?P<before>(?<![\w?&;.-])(?:{_NAME}[\"']?\s*=\s*|[\"']{_NAME}[\"']\s*:\s*)[\"']?)(?P<secret>[^\s\"',;&)}}\]]+)",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?P<before>\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)(?:\s|%20)+)?"
    r"|\b(?:x-)?(?:api-key|auth-token)[\"']?\s*[:=]\s*[\"']?|\bbearer(?:\s|%20)+(?=\S{16}))"
    r"(?P<secret>[^\s\"',;&)}\]]+)",
    re.IGNORECASE,
)
_KNOWN_FORM = re.compile(
    r"(?P<before>)(?P<secret>\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bS[UAOCNX][A-Z2-7]{56}\b|\bhf_[A-Za-z0-9]{20,}"
    r"|\bgh[opsu]_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,})"
)
"""AWS keys, NATS seeds, and tokens of Hugging Face, GitHub and OpenAI."""
_JSON_WEB_TOKEN = re.compile(
    r"(?<![\w-])(?=[\w-]++\.eyJ[\w-]++\.[\w-])(?P<before>[\w-]*?\b)(?P<secret>eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+)"
)
"""It starts at a word boundary, checks that two more parts follow, and only then searches for `eyJ`."""
PATTERNS = (URL_LOGIN, URL_TOKEN, URL_QUERY, _HEADER, _PAIR, _KNOWN_FORM, _JSON_WEB_TOKEN)
LONGEST = 256 * 1024
"""Most characters of a text that is shown to people; `shown` cuts longer texts."""
MORE = "..."
"""End of a text that was cut."""
_LAST_WORD = re.compile(r"^\S*")
_PART = 8 * 1024
"""Characters that are redacted beyond the shown part of a text: the longest possible secret."""


def is_secret(name: str, value: str) -> bool:
    """Return whether an environment variable is secret, by its name or a login in its value. Proxies are not."""
    name = name.upper()
    return not name.endswith("_PROXY") and bool(_SECRET_NAME.search(name) or _ANY_LOGIN.search(value))


def is_secret_setting(name: str) -> bool:
    """Return whether a setting of another package is secret by its name: `api_key` of SGLang is, `input_key` is not."""
    return re.search(r"api_key|wandb_key|passw|secret|auth_token|access_key|credential", name) is not None


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """Return the text with `***` for each of `secrets`, and for everything that has the form of a secret.

    References (`${NAME}`) stay, because they name the secret only. Redacting a text twice changes nothing.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    for pattern in PATTERNS:
        text = substitute(pattern, text, lambda _: MASK)
    return text


def substitute(pattern: re.Pattern[str], text: str, instead: Callable[[str], str]) -> str:
    """Return the text with `instead(secret)` for each match of a pattern that is not a reference or mask."""

    def replaced(match: re.Match[str]) -> str:
        secret = match["secret"]
        is_open = secret and secret != MASK and not re.fullmatch(_REFERENCE, secret)
        return match["before"] + (instead(secret) if is_open else secret)

    if pattern is not URL_LOGIN:
        return pattern.sub(replaced, text)
    if "://" not in text or "@" not in text:
        return text

    def replaced_in(word: re.Match[str]) -> str:
        end = word[0].rfind("@") + 1
        return pattern.sub(replaced, word[0][:end]) + word[0][end:]

    return _WORD.sub(replaced_in, text)


def secrets_in(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Yield the secrets that match a pattern."""
    secrets: list[str] = []

    def keep(secret: str) -> str:
        secrets.append(secret)
        return secret

    substitute(pattern, text, keep)
    yield from secrets


def known_secrets(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the secrets in environment variables: by name, in logins, in headers, and in fsspec's JSON options."""
    return frozenset(
        secret for name, value in environ.items() for secret in _secrets_of(name.upper(), value) if len(secret) >= LEAST
    )


def own_secrets() -> frozenset[str]:
    """Return the secrets in this process's environment. The result is cached until the environment changes."""
    raw: Mapping[bytes, bytes] = vars(os.environ)["_data"]  # decoding all variables takes longer than redacting a text
    return _secrets_in(frozenset(raw.items()))


@lru_cache(maxsize=4)
def _secrets_in(variables: frozenset[tuple[bytes, bytes]]) -> frozenset[str]:
    return known_secrets({os.fsdecode(name): os.fsdecode(value) for name, value in variables})


def _secrets_of(name: str, value: str) -> Iterator[str]:
    for pattern in (URL_LOGIN, URL_TOKEN, URL_QUERY):
        yield from secrets_in(pattern, value)
    if name.endswith("_HEADERS"):
        for part in value.split(","):
            header = unquote(part.partition("=")[2]).strip()
            yield from (header, header.rpartition(" ")[2])
    elif value.startswith("{"):
        yield from _in_json(value)
    elif _SECRET_VALUE.search(name) and not _NO_VALUE.search(name):
        is_path = value.startswith(("/", "~")) and "SECRET" not in name
        yield from () if is_path else (value,)


def _in_json(value: str) -> Iterator[str]:
    """Yield the secrets in JSON options such as `FSSPEC_S3='{"key": ..., "secret": ...}'`."""
    try:
        options = json.loads(value)
    except ValueError:
        return
    for name, option in options.items():
        if isinstance(option, str) and _SECRET_VALUE.search(name.upper()):
            yield option


def shown(text: str, limit: int = LONGEST) -> str:
    """Redact the secrets of this process. Every message, log line and printed error passes through this function.

    A longer text is cut to `limit` characters after redaction, so that no half of a secret is shown. Only the beginning
    of a very long text is redacted: the shown part and the length of a secret more.
    """
    return cut(text, limit, own_secrets())


def cut(text: str, limit: int, secrets: Collection[str] = ()) -> str:
    """Redact a text and cut it to `limit` characters."""
    window = limit + _PART
    if len(text) > window:  # drop the cut word: its end could show that it is a secret
        text = _LAST_WORD.sub("", text[:window][::-1], count=1)[::-1] + MORE
    text = redact(text, secrets)
    return text if len(text) <= limit else text[: limit - len(MORE)] + MORE
