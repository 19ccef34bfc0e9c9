"""C12: long heads and paths, and names over NATS that long patterns are tried on."""

from __future__ import annotations

import json
from functools import partial

from tests.harness.attacks.attack import Answer, Attack
from tests.harness.attacks.scene import Scene

LONG = 60_000
SHAPES: tuple[tuple[str, bytes], ...] = (
    ("letters", b"a" * LONG),
    ("scheme letters", b"a+" * (LONG // 2)),
    ("almost a URL", b"http://" + b"a" * LONG),
    ("many URLs", b"h://a:b@c " * (LONG // 10)),
    ("key=", b"key=" * (LONG // 4)),
    ("blanks", b"token" + b" " * LONG + b"x"),
    ("signs", b"=:@" * (LONG // 3)),
)


async def _head(scene: Scene, name: bytes, value: bytes) -> Answer:
    return await scene.raw(
        b"POST /v1/runs/%s/prompts HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % (scene.run.encode(), scene.port)
        + b"%s: %s\r\nContent-Length: 2\r\n\r\n{}" % (name, value)
    )


async def _path(scene: Scene, path: bytes) -> Answer:
    return await scene.raw(b"GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (path, scene.port))


async def _many_heads(scene: Scene) -> Answer:
    heads = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 20) for number in range(2000))
    return await scene.raw(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % scene.port + heads + b"\r\n")


async def _rm_type(scene: Scene, text: str) -> Answer:
    body = {"prompt": "1+1", "metadata": {"rm_type": text}}
    reply = await scene.nats(json.dumps(body).encode())
    return Answer(reply[:90], '"errors"' in reply or '"refused"' in reply)


def _blanks_out(value: bytes) -> bytes:
    return value.replace(b" ", b"%20")


ATTACKS: list[Attack] = [
    *(
        Attack(
            f"60 KB of {kind} in {name.decode()}", "head", "refused", partial(_head, name=name, value=before + value)
        )
        for kind, value in SHAPES
        for name, before in (
            (b"Authorization", b"Bearer "),
            (b"X-Api-Key", b""),
            (b"Origin", b""),
            (b"User-Agent", b""),
            (b"Host", b""),
        )
    ),
    *(
        Attack(f"60 KB of {kind}", "path", "refused", partial(_path, path=b"/" + _blanks_out(value)))
        for kind, value in SHAPES
    ),
    *(
        Attack(
            f"60 KB of {kind}", "query", "refused", partial(_path, path=b"/v1/runs/x/groups/y?" + _blanks_out(value))
        )
        for kind, value in SHAPES
    ),
    *(
        Attack(f"60 KB of {kind}", "session", "refused", partial(_path, path=b"/v1/sessions/" + _blanks_out(value)))
        for kind, value in SHAPES
    ),
    Attack("2,000 heads", "head", "refused", _many_heads),
    *(
        Attack(f"rm_type: 60 KB of {kind}", "NATS inbox", "refused", partial(_rm_type, text=value.decode()))
        for kind, value in SHAPES
    ),
]
"""Only bytes that HTTP allows: what it does not is refused before any of it is read."""
