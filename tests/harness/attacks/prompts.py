"""B8: invalid prompts, by HTTP, NDJSON and NATS; finished rollouts and rewards of the wrong kind, too."""

from __future__ import annotations

import hashlib
from functools import partial

from tests.harness.attacks.attack import REFUSED, TAKEN, Answer, Attack, answer_of, expects
from tests.harness.attacks.scene import Scene

EITHER = REFUSED | TAKEN
CALLED = (
    b'{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": '
    b'[{"type": "function", "function": {"name": "f", "arguments": ""}}]}]}'
)
BODIES: tuple[tuple[str, bytes, frozenset[int]], ...] = (
    ("Latin-1", b'{"prompt": "caf\xe9"}', REFUSED),
    ("a byte order mark", b'\xef\xbb\xbf{"prompt": "1+1", "key": "bom"}', EITHER),
    ("a label of 1e999", b'{"prompt": "1+1", "label": 1e999}', REFUSED),
    ("a label of NaN", b'{"prompt": "1+1", "label": NaN}', REFUSED),
    ("a label of 5,000 digits", b'{"prompt": "1+1", "label": ' + b"9" * 5000 + b"}", EITHER),
    ("a label of 30 digits", b'{"prompt": "1+1", "label": ' + b"9" * 30 + b"}", EITHER),
    ("1,500 levels", b'{"prompt": "1+1", "metadata": {"a": ' + b"[" * 1500 + b"]" * 1500 + b"}}", EITHER),
    ("no prompt", b"{}", REFUSED),
    ("an empty prompt", b'{"prompt": ""}', EITHER),
    ("null", b'{"prompt": null}', REFUSED),
    ("a number", b'{"prompt": 5}', REFUSED),
    ("a list of numbers", b'{"prompt": [1, 2]}', REFUSED),
    ("an empty chat", b'{"prompt": []}', REFUSED),
    ("content null", b'{"prompt": [{"role": "user", "content": null}]}', REFUSED),
    ("content a number", b'{"prompt": [{"role": "user", "content": 5}]}', REFUSED),
    (
        "content an image",
        b'{"prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1"}}]}]}',
        REFUSED,
    ),
    ("content parts", b'{"prompt": [{"role": "user", "content": [{"type": "text", "text": "1+1"}]}]}', EITHER),
    ("a role that is none", b'{"prompt": [{"role": "root", "content": "a"}]}', EITHER),
    (
        "call arguments of ''",
        CALLED,
        EITHER,
    ),
    ("metadata a number", b'{"prompt": "1+1", "metadata": 5}', EITHER),
    ("a key of 10 KB", b'{"prompt": "1+1", "key": "' + b"k" * 10_000 + b'"}', REFUSED),
    ("a key that is empty", b'{"prompt": "1+1", "key": ""}', REFUSED),
    ("a key of a path", b'{"prompt": "1+1", "key": "../../x"}', EITHER),
    ("a priority of 10**30", b'{"prompt": "1+1", "priority": 1000000000000000000000000000000}', REFUSED),
    ("a template in it", b'{"prompt": "{{ 7*7 }}{% for a in range(10**9) %}{% endfor %}"}', EITHER),
    ("tools of a text", b'{"prompt": "1+1", "tools": "rm"}', REFUSED),
    ("a million tokens", b'{"prompt": "' + b"1 " * 500_000 + b'"}', EITHER),
    ("pickle", b"\x80\x04.", REFUSED),
    ("a list of the same key", b'[{"prompt": "a", "key": "k"}, {"prompt": "b", "key": "k"}]', EITHER),
)


def _rollout(*samples: bytes) -> bytes:
    """Return a finished rollout whose key derives from its samples."""
    key = hashlib.sha256(b"".join(samples)).hexdigest().encode()
    return b'{"key": "%s", "prompt": "a", "samples": [%s]}' % (key, b", ".join(samples))


ROLLOUTS: tuple[tuple[str, bytes], ...] = (
    ("a token outside", _rollout(b'{"tokens": [99999], "reward": 1}', b'{"tokens": [49], "reward": 0}')),
    ("a negative token", _rollout(b'{"tokens": [-1], "reward": 1}', b'{"tokens": [49], "reward": 0}')),
    ("a token of 2**40", _rollout(b'{"tokens": [1099511627776], "reward": 1}', b'{"tokens": [49], "reward": 0}')),
    ("a log-prob of 1e999", _rollout(b'{"tokens": [49], "log_probs": [1e999]}', b'{"text": "a"}')),
    ("a log-prob above 0", _rollout(b'{"tokens": [49], "log_probs": [5]}', b'{"text": "a"}')),
    ("a mask of 7", _rollout(b'{"tokens": [49], "loss_mask": [7]}', b'{"text": "a"}')),
    ("half a character", _rollout(b'{"text": "\\ud83d", "reward": 1}', b'{"text": "a", "reward": 0}')),
    ("a version to come", _rollout(b'{"text": "a", "version": 99999}', b'{"text": "b"}')),
    ("a reward of 1e308", _rollout(b'{"text": "a", "reward": 1e308}', b'{"text": "b", "reward": -1e308}')),
    ("100,000 samples", _rollout(*[b'{"text": "a"}'] * 100_000)),
    ("no samples", _rollout()),
)
REWARDS: tuple[tuple[str, bytes], ...] = (
    ("NaN", b'{"sample": "x-s0", "reward": NaN}'),
    ("1e999", b'{"sample": "x-s0", "reward": 1e999}'),
    ("1e308", b'{"sample": "x-s0", "reward": 1e308}'),
    ("nobody's sample", b'{"sample": "train-0-000000-s0", "reward": 1}'),
    ("a sample of a path", b'{"sample": "../../x", "reward": 1}'),
    ("a sample of wildcards", b'{"sample": "*.>", "reward": 1}'),
    ("a detail of 6 MB", b'{"sample": "x-s0", "reward": 1, "detail": {"log": "' + b"y" * 6_000_000 + b'"}}'),
    ("half a character", b'{"sample": "\\ud83d", "reward": 1, "detail": {"\\udc80": "\\ud83d"}}'),
)
OTHERS = [
    *((name, "trajectories", body) for name, body in ROLLOUTS),
    *((name, "rewards", body) for name, body in REWARDS),
]


async def _http(
    scene: Scene, body: bytes, expected: frozenset[int], kind: str = "json", route: str = "prompts"
) -> Answer:
    return answer_of(await scene.post(route, raw=body, kind=kind), expected)


async def _nats(scene: Scene, body: bytes, what: str = "prompts") -> Answer:
    reply = await scene.nats(body[:900_000], what)
    return Answer(reply[:90], reply.startswith("{"))


ATTACKS: list[Attack] = [
    *(Attack(name, "prompts", expects(ok), partial(_http, body=body, expected=ok)) for name, body, ok in BODIES),
    *(
        Attack(name, "prompts, NDJSON", expects(ok), partial(_http, body=body + b"\n", expected=ok, kind="x-ndjson"))
        for name, body, ok in BODIES
    ),
    *(Attack(name, "NATS inbox", "a reply", partial(_nats, body=body)) for name, body, _ in BODIES),
    *(
        Attack(name, route, expects(EITHER), partial(_http, body=body, expected=EITHER, route=route))
        for name, route, body in OTHERS
    ),
    *(Attack(name, f"NATS {route}", "a reply", partial(_nats, body=body, what=route)) for name, route, body in OTHERS),
]
