"""B3: token ids that the model does not have, by every dialect that takes ids."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.harness.attacks.attack import REFUSED, TAKEN, Attack, expects
from tests.harness.attacks.scene import Scene, turned

CHAT, GENERATE, MESSAGES, RESPONSES = "/v1/chat/completions", "/generate", "/v1/messages", "/v1/responses"
ASKED = [{"role": "user", "content": "1+1"}]
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "max_tokens": 5, "messages": ASKED},
    GENERATE: {"text": "1+1", "sampling_params": {"max_new_tokens": 5}},
    MESSAGES: {"model": "m", "max_tokens": 5, "messages": ASKED},
    RESPONSES: {"model": "m", "max_output_tokens": 16, "input": ASKED},
}
EITHER = REFUSED | TAKEN
VALUES: tuple[tuple[str, Any], ...] = (
    ("one above", [264]),
    ("99999", [99999]),
    ("negative", [-1]),
    ("2**31-1", [2**31 - 1]),
    ("2**31", [2**31]),
    ("2**63", [2**63]),
    ("10**40", [10**40]),
    ("a fraction", [1.5]),
    ("a text", ["a"]),
    ("null", [None]),
    ("true", [True]),
    ("nested", [[49]]),
    ("one bad among good ones", [49, 43, 49, 5000]),
)


async def _sent(scene: Scene, path: str, fields: dict[str, Any], expected: frozenset[int] = REFUSED) -> Any:
    return await turned(scene, path, BASE[path] | fields, expected)


def _attack(name: str, path: str, fields: dict[str, Any], expected: frozenset[int] = REFUSED) -> Attack:
    return Attack(name, path, expects(expected), partial(_sent, path=path, fields=fields, expected=expected))


def _params(**fields: Any) -> dict[str, Any]:
    return {"sampling_params": {"max_new_tokens": 5} | fields}


ATTACKS: list[Attack] = [
    *(_attack(f"input_ids {name}", GENERATE, {"text": None, "input_ids": ids}) for name, ids in VALUES),
    *(_attack(f"stop_token_ids {name}", CHAT, {"stop_token_ids": ids, "min_tokens": 3}) for name, ids in VALUES),
    *(
        _attack(f"stop_token_ids {name}", GENERATE, _params(stop_token_ids=ids, min_new_tokens=3))
        for name, ids in VALUES
    ),
    _attack("stop_token_ids", MESSAGES, {"stop_token_ids": [99999]}),
    _attack("stop_token_ids", RESPONSES, {"stop_token_ids": [99999]}),
    _attack("logit_bias outside", CHAT, {"logit_bias": {"99999": 5.0}}, EITHER),
    _attack("logit_bias negative", CHAT, {"logit_bias": {"-1": 5.0}}, EITHER),
    _attack("logit_bias no number", CHAT, {"logit_bias": {"49": "x"}}, EITHER),
    _attack("logit_bias 1e39", CHAT, {"logit_bias": {"49": 1e39}}, EITHER),
    _attack("logit_bias", GENERATE, _params(logit_bias={"99999": 5.0}), EITHER),
    _attack("token_ids_logprob", GENERATE, {"return_logprob": True, "token_ids_logprob": [99999]}, EITHER),
    _attack("100,000 ids", GENERATE, {"text": None, "input_ids": [49] * 100_000}),
    _attack("100,000 stop ids", CHAT, {"stop_token_ids": [49] * 100_000}, EITHER),
    _attack("no ids", GENERATE, {"text": None, "input_ids": []}),
    _attack("seed 2**63", CHAT, {"seed": 2**63}, EITHER),
    _attack("seed negative", CHAT, {"seed": -1}, EITHER),
]
