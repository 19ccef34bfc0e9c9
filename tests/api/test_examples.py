"""Test the programs of examples/. tests/run/test_the_loop.py runs `examples/the_loop.py`."""

from __future__ import annotations

import asyncio

from slime_events import ArgsView, Sample
from slime_events.plugins.filters.decide import run_filter
from slime_events.plugins.loader import check_call, load_function
from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"
ARGS = ArgsView({"reward_key": None, "max_turns": 2})


def test_the_loop_is_short() -> None:
    lines = (EXAMPLES / "the_loop.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150


def test_nothing_of_ours_is_imported_but_the_public_names() -> None:
    for file in EXAMPLES.glob("*.py"):
        imports = [
            line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith(("from ", "import "))
        ]
        ours = [
            line for line in imports if line.split()[1].startswith(("slime_events.", "schemas", "storage", "actors"))
        ]
        assert not ours, file


def test_the_reward() -> None:
    reward = load_function("rewards.py:reward_func", user_dir=EXAMPLES)
    check_call(reward, "(args, sample)", 2)
    answers = ("<think>2+2=4</think>4<|im_end|>", "5<|im_end|>", "<|im_end|>")
    assert [reward(ARGS, Sample(response=text, label="4")) for text in answers] == [1.0, 0.1, 0.0]


def test_the_filter() -> None:
    keep = load_function("filters.py:not_too_easy", user_dir=EXAMPLES)
    solved = run_filter(keep, ARGS, [Sample(reward=1.0) for _ in range(8)])
    assert (solved.keep, solved.reason) == (False, "solved_1.0")
    assert run_filter(keep, ARGS, [Sample(reward=float(n > 3)) for n in range(8)]).keep


def test_the_generate_function_asks_its_tool() -> None:
    from serve_apps.rollouts.generate.function import GenerateFunction

    GenerateFunction("calculator.py:generate", EXAMPLES)
    calculate = load_function("calculator.py:calculate", user_dir=EXAMPLES)
    assert calculate("8-5-1+2") == 4
    reward = load_function("calculator.py:reward_func", user_dir=EXAMPLES)
    assert reward(ARGS, Sample(response="</think>4<|im_end|>", label="4")) == 1.0


def test_the_generate_function_makes_two_turns() -> None:
    generate = load_function("calculator.py:generate", user_dir=EXAMPLES)
    session = _Session()
    sample = Sample(prompt="<|im_start|>user\n1+2<|im_end|>", label="3")
    sample_ = asyncio.run(generate(ARGS, sample, {}, session=session))
    assert (session.turns, sample_.metadata["turns"]) == (2, 2)
    assert "\n3<|im_end|>" in sample_.response
    assert sample_.loss_mask is not None
    assert 0 < sum(sample_.loss_mask) < sample_.response_length


class _Turn:
    stop = "stop"

    def add_to(self, sample: Sample) -> None:
        sample.append_response_tokens(tokens=[1, 2], log_probs=[-0.5, -0.5], text="7<|im_end|>")


class _Session:
    """A model that always says 7, and tools that are called at once."""

    turns = 0

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    async def generate(self, tokens: list[int]) -> _Turn:
        self.turns += 1
        return _Turn()

    async def call(self, tool: object, arguments: dict[str, str], *, may_repeat: bool) -> object:
        assert may_repeat
        return tool(**arguments)  # type: ignore[operator]
