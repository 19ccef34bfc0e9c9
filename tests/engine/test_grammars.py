"""Grammars are compiled within limits, in a process that is killed at its deadline and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from schemas.errors import EngineError, InvalidValue
from schemas.rollouts import Sampling
from serve_apps.engines import grammars as module
from serve_apps.engines.grammars import GRAMMAR_BYTES, Grammars
from serve_apps.engines.limits import EngineLimits
from slime_events.app.demo.settings import BASE
from slime_events.core.config.engine import EngineSettings

pytestmark = pytest.mark.asyncio(loop_scope="module")
TAG = json.dumps({"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a"]})
AMBIGUOUS = (
    "root ::= s0\n" + "".join(f"s{n} ::= s{n + 1} s{n + 1} | s{n + 1}\n" for n in range(25)) + 's25 ::= "a" | ""\n'
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grammars() -> AsyncIterator[Grammars]:
    """One process for all: it takes seconds to start."""
    pytest.importorskip("xgrammar")
    engine_grammars = Grammars(str(BASE), 264)
    yield engine_grammars
    engine_grammars.close()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "a+"),
        ("regex", r"\d{3}-\d{4}"),
        ("ebnf", 'root ::= "yes" | "no"'),
        ("json_schema", "$$ANY$$"),
        ("json_schema", '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}'),
        ("structural_tag", TAG),
    ],
)  # fmt: skip
async def test_a_grammar_of_the_field_fits(grammars: Grammars, kind: str, text: str) -> None:
    await grammars.check(kind, text)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("regex", "(((", "parenthesis is not closed"),
        ("regex", "([", "Unclosed"),
        ("ebnf", "root ::= (", "EBNF parser error at line 1"),
        ("ebnf", "", "root"),
        ("json_schema", '{"type": "nonsense"}', 'Unsupported type "nonsense"'),
        ("json_schema", '{"$ref": "#"}', "no token of the model fits it after 0 tokens"),
        ("json_schema", "{", "double quotes"),
        ("json_schema", "3", "object or bool"),
        ("json_schema", "[" * 100_000, "recursion"),
        ("structural_tag", "{}", "format"),
        ("structural_tag", '{"structures": [{}], "triggers": []}', "KeyError"),
        ("structural_tag", "7", "."),
        ("ebnf", AMBIGUOUS, "too slow|too large"),
        ("regex", "x" * (GRAMMAR_BYTES + 1), "bytes"),
    ],
)
async def test_what_does_not_compile_is_said_in_the_parsers_words(
    grammars: Grammars, kind: str, text: str, reason: str
) -> None:
    for _ in range(2):  # the second time from memory
        with pytest.raises(InvalidValue, match=f"(?s)^{kind}: .*({reason})"):
            await grammars.check(kind, text)


async def test_a_process_that_is_stuck_or_gone_costs_its_grammar_alone(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grammars.check("regex", "b+")
    assert grammars._process is not None
    os.kill(grammars._process._child.pid, signal.SIGSTOP)
    monkeypatch.setattr(grammars, "_compile_s", 0.2)
    with pytest.raises(InvalidValue, match="not compiled within"):
        await grammars.check("regex", "c+")
    monkeypatch.undo()
    await grammars.check("regex", "d+")
    assert grammars._process is not None
    os.kill(grammars._process._child.pid, signal.SIGSTOP)
    asking = asyncio.create_task(grammars.check("regex", "e+"))
    await asyncio.sleep(0.05)
    os.kill(grammars._process._child.pid, signal.SIGKILL)
    with pytest.raises(InvalidValue, match="ran out of memory or stack"):
        await asking
    await grammars.check("regex", "f+")


async def test_whoever_goes_away_leaves_no_answer_to_the_next_one(grammars: Grammars) -> None:
    asking = asyncio.create_task(grammars.check("regex", "(((" + "x"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await grammars.check("regex", "g+")


async def test_many_that_wait_are_asked_to_come_again(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MOST", 3)
    texts = [f"h{{{n + 1}}}" for n in range(8)]
    results = await asyncio.gather(*(grammars.check("regex", text) for text in texts), return_exceptions=True)
    kinds: list[Any] = [type(result) for result in results]
    assert kinds.count(EngineError) == 5
    assert kinds.count(type(None)) == 3


async def test_an_engine_without_a_back_end_compiles_nothing() -> None:
    assert EngineLimits.of(EngineSettings(hf_checkpoint=str(BASE))).grammars is None
    limits = EngineLimits.of(EngineSettings(hf_checkpoint=str(BASE), sglang={"grammar_backend": "xgrammar"}))
    assert limits.grammars is not None
    await limits.check_sampling(Sampling(max_new_tokens=1))
    assert limits.grammars._process is None, "nothing is started for a request without a grammar"
    limits.close()


async def test_where_nothing_can_compile_engines_judge_alone(tmp_path: Any) -> None:
    without_tokenizer = Grammars(str(tmp_path), 264)
    await without_tokenizer.check("regex", "(((")
    assert without_tokenizer._process is None


async def test_a_process_without_an_owner_ends_by_itself(grammars: Grammars) -> None:
    """Its owner closes the socket. The kernel ends it with a killed owner (`tests/child`)."""
    await grammars.check("regex", "i+")
    assert grammars._process is not None
    child = grammars._process._child
    grammars._process._writer.close()
    assert await asyncio.to_thread(child.wait, 30)
    assert child.code == 0
    grammars.close()
    await grammars.check("regex", "j+")
