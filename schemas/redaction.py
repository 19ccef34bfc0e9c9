"""What is secret in a text, and the text without it: `redact` for messages, logs and whatever else people are shown.

Settings hold no secrets in the first place (schemas/references.py). What is found here came by another way: in the
words of another package, from an environment variable, or out of a record of an older version.

Anybody may have written the text, so each pattern takes time in proportion to its length: no two starts of a pattern
look at the same characters again and again. `tests/schemas/test_redaction_time.py` measures each of them.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote

MASK = "***"
LEAST = 6
"""Characters of a value from the environment that is looked for in texts: a shorter one stands in many words."""

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
"""The password of `scheme://user:password@host`. Unescaped it may hold `@`, and, where nothing else ends it, `/`.
Search it with `found_in` or `substitute`, which leave out what no `@` comes after: there it would look far and in vain.
"""
_WORD = re.compile(rf"[^{_STOP}]+")
URL_TOKEN = re.compile(
    rf"(?P<before>\b(?:nats|tls|wss?|https?)://)(?P<secret>[^{_STOP}/?#@:\[\]]+)(?=@)",
    re.IGNORECASE,
)
"""A token before the host. With other schemes, such as sftp, a name without a password is a user's name."""
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
"""Keys of AWS, seeds of NATS, tokens of Hugging Face, GitHub and OpenAI."""
_JSON_WEB_TOKEN = re.compile(
    r"(?<![\w-])(?=[\w-]++\.eyJ[\w-]++\.[\w-])(?P<before>[\w-]*?\b)(?P<secret>eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+)"
)
"""It begins where letters and `-` begin, looks whether the next two parts come after them, and only then for `eyJ`."""
PATTERNS = (URL_LOGIN, URL_TOKEN, URL_QUERY, _HEADER, _PAIR, _KNOWN_FORM, _JSON_WEB_TOKEN)
LONGEST = 256 * 1024
"""Characters of a text that is redacted for people: whoever has more to show cuts it, and `shown` does."""
MORE = "..."
"""At the end of a text that was cut."""
_LAST_WORD = re.compile(r"^\S*")
_PART = 8 * 1024
"""Characters beyond those that are shown of a text which are redacted with them: as long as a secret may be."""


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like one, by its name or by a login in its value. Proxies are needed, and are none."""
    name = name.upper()
    return not name.endswith("_PROXY") and bool(_SECRET_NAME.search(name) or _ANY_LOGIN.search(value))


def is_secret_setting(name: str) -> bool:
    """Whether a setting of another package is one by its name, such as SGLang's `api_key`; `input_key` is none."""
    return re.search(r"api_key|wandb_key|passw|secret|auth_token|access_key|credential", name) is not None


def redact(text: str, known: Collection[str] = ()) -> str:
    """The text with `***` for each secret: those that are `known`, and whatever has the form of one.

    References (`${NAME}`) stay: they say where the secret is. What was redacted is not changed again.
    """
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, MASK)
    for pattern in PATTERNS:
        text = substitute(pattern, text, lambda _: MASK)
    return text


def substitute(pattern: re.Pattern[str], text: str, instead: Callable[[str], str]) -> str:
    """The text with `instead(secret)` for each secret that a pattern finds, but for references and masks."""

    def replaced(found: re.Match[str]) -> str:
        secret = found["secret"]
        is_open = secret and secret != MASK and not re.fullmatch(_REFERENCE, secret)
        return found["before"] + (instead(secret) if is_open else secret)

    if pattern is not URL_LOGIN:
        return pattern.sub(replaced, text)
    if "://" not in text or "@" not in text:
        return text

    def replaced_in(word: re.Match[str]) -> str:
        end = word[0].rfind("@") + 1
        return pattern.sub(replaced, word[0][:end]) + word[0][end:]

    return _WORD.sub(replaced_in, text)


def found_in(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """The secrets that a pattern finds."""
    found: list[str] = []

    def keep(secret: str) -> str:
        found.append(secret)
        return secret

    substitute(pattern, text, keep)
    yield from found


def known_secrets(environ: Mapping[str, str]) -> frozenset[str]:
    """The secrets in environment variables: by their names, in logins, headers and the JSON of fsspec's options."""
    return frozenset(
        found for name, value in environ.items() for found in _secrets_of(name.upper(), value) if len(found) >= LEAST
    )


def own_secrets() -> frozenset[str]:
    """Those of this process. They are looked for again only where its environment has changed: every message asks."""
    raw: Mapping[bytes, bytes] = vars(os.environ)["_data"]  # to decode all variables takes longer than to redact a text
    return _secrets_in(frozenset(raw.items()))


@lru_cache(maxsize=4)
def _secrets_in(variables: frozenset[tuple[bytes, bytes]]) -> frozenset[str]:
    return known_secrets({os.fsdecode(name): os.fsdecode(value) for name, value in variables})


def _secrets_of(name: str, value: str) -> Iterator[str]:
    for pattern in (URL_LOGIN, URL_TOKEN, URL_QUERY):
        yield from found_in(pattern, value)
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
    """`FSSPEC_S3='{"key": ..., "secret": ...}'` and the like."""
    try:
        options = json.loads(value)
    except ValueError:
        return
    for name, one in options.items():
        if isinstance(one, str) and _SECRET_VALUE.search(name.upper()):
            yield one


def shown(text: str, limit: int = LONGEST) -> str:
    """`redact` with the secrets of this process: what every message, log line and printed error goes through.

    A text of more than `limit` characters is cut to so many. It is cut after it was redacted, so that no secret is cut
    in two and its half shown; of a very long text, the part that may be shown and some more is redacted.
    """
    return cut(text, limit, own_secrets())


def cut(text: str, limit: int, known: Collection[str] = ()) -> str:
    """`redact`, and at most `limit` characters of it."""
    window = limit + _PART
    if len(text) > window:  # without the word that ends beyond: it may be a secret whose form shows at its end only
        text = _LAST_WORD.sub("", text[:window][::-1], count=1)[::-1] + MORE
    text = redact(text, known)
    return text if len(text) <= limit else text[: limit - len(MORE)] + MORE
