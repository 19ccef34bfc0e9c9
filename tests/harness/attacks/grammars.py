"""B7: grammars that do not compile, or take long to, and parameters that engines refuse."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from tests.harness.attacks.attack import REFUSED, TAKEN, Answer, Attack, expects
from tests.harness.attacks.ids import BASE, CHAT, GENERATE
from tests.harness.attacks.scene import Scene, turned

EITHER = REFUSED | TAKEN


def _schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def _nested(depth: int) -> Any:
    return json.loads('{"type":"object","properties":{"a":' * depth + '{"type":"string"}' + "}}" * depth)


AMBIGUOUS = "\n".join(f"a{n} ::= a{n + 1} | a{n + 1} a{n + 1} | " + f'"x" a{n + 1}' for n in range(25))
GRAMMARS: tuple[tuple[str, dict[str, Any], frozenset[int]], ...] = (
    ("regex ([", {"regex": "(["}, REFUSED),
    ("regex (((", {"regex": "((("}, REFUSED),
    ("regex a{9,1}", {"regex": "a{9,1}"}, EITHER),
    ("regex back reference", {"regex": r"(a)\1"}, EITHER),
    ("regex look-ahead", {"regex": "(?=a)b"}, EITHER),
    ("regex (a{1,200}){1,200}b", {"regex": "(a{1,200}){1,200}b"}, EITHER),
    ("regex a{1,1000000}", {"regex": "a{1,1000000}"}, EITHER),
    ("regex 50,000 alternatives", {"regex": "|".join(f"w{n}" for n in range(50_000))}, EITHER),
    ("regex 20,000 brackets", {"regex": "(" * 20_000 + ")" * 20_000}, EITHER),
    ("regex a megabyte", {"regex": "a" * 1_000_000}, EITHER),
    ("regex half a character", {"regex": "\ud83d"}, EITHER),
    ("regex a number", {"regex": 5}, REFUSED),
    ("ebnf root ::= (", {"ebnf": "root ::= ("}, REFUSED),
    ("ebnf no root", {"ebnf": 'a ::= "b"'}, REFUSED),
    ("ebnf undefined rule", {"ebnf": "root ::= b"}, REFUSED),
    ("ebnf left recursion", {"ebnf": 'root ::= root "a" | "b"'}, EITHER),
    ("ebnf 25 ambiguous levels", {"ebnf": f'root ::= a0\n{AMBIGUOUS}\na25 ::= "x"'}, EITHER),
    ("schema of nonsense", _schema({"type": "nonsense"}), REFUSED),
    ("schema that is itself", _schema({"$ref": "#"}), EITHER),
    ("schema with a reference to nowhere", _schema({"$ref": "#/$defs/X"}), EITHER),
    ("schema with a reference to a URL", _schema({"$ref": "http://127.0.0.1:1/x"}), EITHER),
    ("schema of a list", _schema([1]), REFUSED),
    ("schema 60 deep", _schema(_nested(60)), EITHER),
    ("schema 400 deep", _schema(_nested(400)), EITHER),
    ("schema pattern (((", _schema({"type": "string", "pattern": "((("}), EITHER),
    ("schema enum of 100,000", _schema({"enum": [f"w{n}" for n in range(100_000)]}), EITHER),
    ("schema false", _schema(False), EITHER),
    ("schema between 5 and 1", _schema({"type": "integer", "minimum": 5, "maximum": 1}), EITHER),
    ("two grammars", {"regex": "a", "ebnf": 'root ::= "a"'}, EITHER),
)
PARAMETERS: tuple[tuple[str, dict[str, Any], frozenset[int]], ...] = (
    ("min above max", {"min_tokens": 1000}, REFUSED),
    ("min 2**31-1", {"min_tokens": 2**31 - 1}, REFUSED),
    ("min negative", {"min_tokens": -5}, REFUSED),
    ("33 stops", {"stop": [f"s{n}" for n in range(33)]}, EITHER),
    ("2,000 stops", {"stop": [f"s{n}" for n in range(2000)]}, EITHER),
    ("a stop of 100 KB", {"stop": ["x" * 100_000]}, EITHER),
    ("an empty stop", {"stop": [""]}, EITHER),
    ("a stop of a number", {"stop": [5]}, REFUSED),
    ("temperature 1e308", {"temperature": 1e308}, EITHER),
    ("temperature negative", {"temperature": -1}, EITHER),
    ("top_p 2", {"top_p": 2}, EITHER),
    ("top_k -7", {"top_k": -7}, EITHER),
    ("min_p 5", {"min_p": 5}, EITHER),
    ("repetition_penalty 0", {"repetition_penalty": 0}, EITHER),
    ("frequency_penalty 1e9", {"frequency_penalty": 1e9}, EITHER),
    ("n 1,000", {"n": 1000}, REFUSED),
    ("top_logprobs 10**6", {"logprobs": True, "top_logprobs": 10**6}, REFUSED),
    ("max_tokens 10**12", {"max_tokens": 10**12}, EITHER),
    ("max_tokens 0", {"max_tokens": 0}, REFUSED),
    ("max_tokens a fraction", {"max_tokens": 2.5}, REFUSED),
    ("stream a text", {"stream": "yes"}, EITHER),
)


async def _sent(scene: Scene, path: str, fields: dict[str, Any], expected: frozenset[int]) -> Answer:
    return await turned(scene, path, BASE[path] | fields, expected)


def _generate(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "sampling_params": {"max_new_tokens": 5}
        | {name.replace("min_tokens", "min_new_tokens"): value for name, value in fields.items()}
    }


ATTACKS: list[Attack] = [
    *(
        Attack(name, CHAT, expects(ok), partial(_sent, path=CHAT, fields=fields, expected=ok))
        for name, fields, ok in (*GRAMMARS, *PARAMETERS)
    ),
    *(
        Attack(name, GENERATE, expects(ok), partial(_sent, path=GENERATE, fields=_generate(fields), expected=ok))
        for name, fields, ok in (*GRAMMARS[:2], *GRAMMARS[12:14], *PARAMETERS[:4])
        if "response_format" not in fields
    ),
    Attack(
        "schema, no JSON",
        GENERATE,
        "refused",
        partial(_sent, path=GENERATE, fields=_generate({"json_schema": "{"}), expected=REFUSED),
    ),
    Attack(
        "structural_tag",
        GENERATE,
        "refused or taken",
        partial(_sent, path=GENERATE, fields=_generate({"structural_tag": "{"}), expected=EITHER),
    ),
]
