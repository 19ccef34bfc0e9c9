"""C13: bodies of 60 MB, declared and in chunks; deep nests; many messages: by an agent's key and a source's token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial

from tests.harness.attacks.attack import REFUSED, TAKEN, Answer, Attack, answer_of, expects
from tests.harness.attacks.ids import CHAT, GENERATE, MESSAGES, RESPONSES
from tests.harness.attacks.scene import Scene, turned

NDJSON = "x-ndjson"
LARGE = 60_000_000
PIECE = 1 << 20
EITHER = REFUSED | TAKEN
HEADS: dict[str, tuple[bytes, bytes]] = {
    CHAT: (b'{"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "', b'"}]}'),
    MESSAGES: (b'{"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "', b'"}]}'),
    RESPONSES: (b'{"model": "m", "input": "', b'"}'),
    GENERATE: (b'{"text": "', b'"}'),
}
USER = b'{"role": "user", "content": "a"}'
Body = Callable[[], bytes]
"""A body is built when it is sent: all of them are 200 MB."""


def _parts(path: str, size: int) -> Iterator[bytes]:
    before, behind = HEADS[path]
    yield before
    left = size
    while left > 0:
        yield b"x" * min(left, PIECE)
        left -= PIECE
    yield behind


async def _path_of(scene: Scene, path: str) -> str:
    if path.startswith("/v1/runs"):
        return path
    session = await scene.session()
    return "/" + session.base_url.removesuffix("/v1").split("/", 3)[3] + path


async def _large(scene: Scene, path: str, *, chunked: bool, size: int = LARGE) -> Answer:
    """Send piece by piece, until the gateway refuses or hangs up."""
    parts = list(_parts(path, size))
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % sum(map(len, parts))
    head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n%s\r\n\r\n"
    lines = head % ((await _path_of(scene, path)).encode(), scene.port, length)
    if chunked:
        parts = [*(b"%x\r\n%s\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]
    answer = await scene.raw(lines, *parts, seconds=30)
    broken = await scene.plain()
    return Answer(f"{answer.text}; {broken}", False) if broken else answer


async def _declared_alone(scene: Scene) -> Answer:
    """Send a length of a terabyte, and no body."""
    head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return await scene.raw(head % ((await _path_of(scene, CHAT)).encode(), scene.port, 10**12))


async def _many(scene: Scene, raw: Body, path: str = CHAT, expected: frozenset[int] = REFUSED) -> Answer:
    return await turned(scene, path, None, expected, raw=raw())


async def _sent(scene: Scene, raw: Body, kind: str = "json") -> Answer:
    return answer_of(await scene.post("prompts", raw=raw(), kind=kind), EITHER)


async def _side_by_side(scene: Scene) -> Answer:
    """Send eight of 8 MB at the same time, each as large as a body may be, or larger."""
    answers = await asyncio.gather(*(_large(scene, CHAT, chunked=False, size=8_000_000) for _ in range(8)))
    return Answer(", ".join(sorted({answer.text for answer in answers}))[:90], all(answer.ok for answer in answers))


def _chat(messages: bytes, **fields: object) -> bytes:
    more = "".join(f', "{name}": {json.dumps(value)}' for name, value in fields.items()).encode()
    return b'{"model": "m", "max_tokens": 4, "messages": [' + messages + b"]" + more + b"}"


def _with(name: str, value: bytes) -> bytes:
    """A plain question with one more field."""
    return _chat(USER)[:-1] + b', "%s": %s}' % (name.encode(), value)


def _messages_100k() -> bytes:
    return b",".join([USER] * 100_000)


def _deep() -> bytes:
    return b"[" * 100_000 + b"]" * 100_000


def _tool_900() -> bytes:
    schema = b'{"a":' * 900 + b"1" + b"}" * 900
    return b'[{"type": "function", "function": {"name": "f", "parameters": %s}}]' % schema


def _parts_100k() -> bytes:
    return b",".join([b'{"type": "text", "text": "a"}'] * 100_000)


def _tools_20k() -> list[object]:
    return [{"type": "function", "function": {"name": f"f{n}", "parameters": {}}} for n in range(20_000)]


PROMPT = b'{"prompt": "%s"}\n'


def _by_key(name: str, raw: Body, path: str = CHAT, expected: frozenset[int] = REFUSED) -> Attack:
    return Attack(name, path, expects(expected), partial(_many, raw=raw, path=path, expected=expected))


def _by_token(name: str, raw: Body, kind: str = "json") -> Attack:
    return Attack(name, "prompts", expects(EITHER), partial(_sent, raw=raw, kind=kind), 120.0)


def _large_chat(name: str, size: int) -> Attack:
    return Attack(name, CHAT, "refused", partial(_large, path=CHAT, chunked=False, size=size))


ATTACKS: list[Attack] = [
    *(
        Attack(f"60 MB, {how}", path, "refused", partial(_large, path=path, chunked=how == "chunked"))
        for path in HEADS
        for how in ("declared", "chunked")
    ),
    _large_chat("7 MB of text", 7_000_000),
    _large_chat("300 KB of text", 300_000),
    Attack("8 x 8 MB at once", CHAT, "refused", _side_by_side),
    Attack("a terabyte declared", CHAT, "refused", _declared_alone),
    _by_key("100,000 messages", lambda: _chat(_messages_100k())),
    _by_key("100,000 empty messages", lambda: _chat(_messages_100k().replace(b'"a"', b'""'))),
    _by_key("100,000 parts", lambda: _chat(b'{"role": "user", "content": [%s]}' % _parts_100k())),
    _by_key("20,000 tools", lambda: _chat(USER, tools=_tools_20k()), expected=EITHER),
    _by_key("100,000 levels", _deep),
    _by_key("100,000 levels in a field", lambda: _with("metadata", _deep())),
    _by_key("900 levels in a schema", lambda: _with("tools", _tool_900()), expected=EITHER),
    _by_key("a number of 5 MB", lambda: _with("seed", b"9" * 5_000_000)),
    _by_key("100,000 inputs", lambda: b'{"model": "m", "input": [%s]}' % _messages_100k(), RESPONSES),
    _by_key("100,000 messages", lambda: _chat(_messages_100k()), MESSAGES),
    _by_token("100,000 levels", _deep),
    _by_token("8 MB of one prompt", lambda: PROMPT % (b"x" * 8_000_000)),
    _by_token("a list of 2,000,000 numbers", lambda: b"[" + b"1," * 2_000_000 + b"1]"),
    _by_token("NDJSON: 55 MB of {}", lambda: b"{}\n" * 18_000_000, NDJSON),
    _by_token("NDJSON: 55 MB of blanks", lambda: b"\n" * 55_000_000, NDJSON),
    _by_token("NDJSON: a line of 55 MB", lambda: PROMPT % (b"x" * 55_000_000), NDJSON),
]
