"""Measure the prompt of an agent's turn in a long session: find the turn that a request extends, and tokenize the rest.

For comparison: the time to render and tokenize the whole chat, as gateways without a record of tokens do at each turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from benchmarks.figure import Better, Figure
from serve_apps.rollouts.agents.bridge import Bridge
from serve_apps.rollouts.agents.rendering import Rendering
from tests.agents.models import MODELS, QWEN3, Model, tokenizer
from tests.agents.sessions import TOOLS, Played

TURNS = (1, 128, 1000)
LOOKS = 5
TEXT, RESULT = "I look it up. " * 12, "The tool says that the answer is 42. " * 8
RENDERED = Model("qwen3", QWEN3, "<|im_end|>")


def measure(turns: tuple[int, ...] = TURNS) -> list[Figure]:
    """Return milliseconds at these turns: by the rendered text, by the `renderers` library, and for the whole chat."""
    figures = _session("text", MODELS[2], "", turns)
    return figures + _session("renderers", RENDERED, "Qwen/Qwen3-4B", turns)


def _session(by: str, model: Model, name: str, turns: tuple[int, ...]) -> list[Figure]:
    encoder = tokenizer(model, name)
    played, rendering, figures = Played(Bridge(encoder)), Rendering(encoder), list[Figure]()
    chat: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Find it."}]
    call = '{"name": "look_up", "arguments": {"word": "slime"}}'
    ids = encoder.encode(f"{TEXT.strip()}\n<tool_call>\n{call}\n</tool_call><|im_end|>", add_special_tokens=False)
    for number in range(max(turns) + 1):
        if number in turns:
            looks = [_ms(partial(played.ask, chat, TOOLS)) for _ in range(LOOKS)]
            begun = time.perf_counter()
            length = len(rendering.ids(rendering.text(chat, TOOLS)))
            whole = (time.perf_counter() - begun) * 1e3
            note = f"{length:,} tokens; median of {LOOKS}"
            figures.append(_figure(f"prompt of turn {number}, by {by}", median(looks), note))
            figures.append(_figure(f"the same, all of it anew ({by})", whole, note="once"))
        function = {"name": "look_up", "arguments": {"word": "slime"}}
        answer = {
            "role": "assistant",
            "content": TEXT.strip(),
            "tool_calls": [{"id": f"c{number}", "function": function}],
        }
        played.record(played.ask(chat, TOOLS), ids, answer)
        chat += [answer, {"role": "tool", "tool_call_id": f"c{number}", "content": RESULT}]
    return figures


def _ms(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def _figure(name: str, value: float, note: str) -> Figure:
    return Figure(name=name, value=value, unit="ms", better=Better.LOWER, note=note)
