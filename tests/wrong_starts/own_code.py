"""Mistakes in a user's own code: each plug point, with each of them, in one of the three spellings of a function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ARCHIVED = "--archive-prompts archives/small"
POINTS = {
    "--custom-rm-path": "",
    "--custom-generate-function-path": "",
    "--dynamic-sampling-filter-path": "",
    "--buffer-filter-path": ARCHIVED,
    "--rollout-sample-hook-path": "",
    "--rollout-sample-filter-path": "",
    "--rollout-all-samples-process-path": "",
    "--custom-reward-post-process-path": "",
    "--custom-rollout-log-function-path": "",
    "--custom-eval-rollout-log-function-path": "",
    "--custom-loss-function-path": "--loss-type custom_loss",
    "--custom-advantage-function-path": "",
    "--custom-tis-function-path": "--use-tis",
    "--custom-pg-loss-reducer-function-path": "",
    "--custom-megatron-init-path": "",
    "--custom-megatron-before-log-prob-hook-path": "",
    "--custom-megatron-before-train-step-hook-path": "",
    "--data-source-path": "",
    "--rollout-function-path": "",
    "--eval-function-path": "--eval-interval 1",
}
"""Flags that name a function, or a class, of a user's, and the flags without which nobody would call it."""
AWAITED = (
    *("--custom-rm-path", "--custom-generate-function-path", "--rollout-sample-hook-path", "--data-source-path"),
    *("--rollout-function-path", "--eval-function-path"),
)
"""Those where a coroutine is no mistake, or where a class is wanted."""
FILES = {
    "mine.py": "number = 7\n\n\ndef takes_none(): ...\n\n\nclass Made: ...\n\n\nasync def waits(*_, **__): ...\n",
    "raises.py": "\n1 / 0\n",
    "exits.py": "import sys\nsys.exit(0)\n",
    "grammar.py": "def reward(:\n",
    "needs.py": "import no_such_package_anywhere\n",
    "newer.py": "from slime.utils.types import Sample\nfrom slime.utils.wandb_utils import init\n",
    "older.py": "from slime.utils.types import Sampel\n",
    "deep.py": "import raises\n",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """module, function: what is named. says: texts that the sentence has beside the flag. spellings: by which it can be
    made: `module.function`, `module:function`, `file.py:function`.
    """

    name: str
    module: str
    function: str
    says: tuple[str, ...]
    spellings: tuple[str, ...] = ("{}.{}", "{}:{}", "{}.py:{}")

    def path(self, turn: int) -> str:
        """As it stands on the command line. turn: which spelling."""
        return self.spellings[turn % len(self.spellings)].format(self.module, self.function)


MISTAKES = (
    Mistake("no such module", "no_such_module", "f", ("no_such_module",)),
    Mistake("no such file", "../elsewhere/mine", "f", ("/elsewhere/mine.py",), ("{}.py:{}",)),
    Mistake("no such name", "mine", "takes_nine", ("mine.py", "nearest: takes_none")),
    Mistake("no name", "mine", "", ("mine",), ("{}", "{}:")),
    Mistake("no function", "mine", "number", ("mine.py", "int")),
    Mistake("other arguments", "mine", "takes_none", ("takes_none()", "mine.py:4", "is called with")),
    Mistake("a class", "mine", "Made", ("Made",)),
    Mistake("a coroutine", "mine", "waits", ("waits", "mine.py:10", "async def")),
    Mistake("no Python", "grammar", "f", ("SyntaxError", "grammar.py, line 1")),
    Mistake("its import raises", "raises", "f", ("ZeroDivisionError", "raises.py:2")),
    Mistake("what it imports raises", "deep", "f", ("ZeroDivisionError", "raises.py:2")),
    Mistake("its import exits", "exits", "f", ("SystemExit", "exits.py:2")),
    Mistake("a package is missing", "needs", "f", ("no_such_package_anywhere", "needs.py:1")),
    Mistake("a module of slime's that is not here", "newer", "f", ("slime.utils.wandb_utils", "newer.py:2")),
    Mistake("a name of slime's that is not here", "older", "f", ("Sampel", "older.py:1")),
    Mistake("a path of slime's that is not here", "slime.rollout.nowhere", "f", ("slime.rollout.nowhere",),
            ("{}.{}", "{}:{}")),
)  # fmt: skip


def wrong_code(most: int | None = None) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Name, flags, and what the sentence has, of each plug point with each mistake.

    most: mistakes of a plug point, of each other ones; None: all of them.
    """
    for number, (flag, needs) in enumerate(POINTS.items()):
        can = [one for one in MISTAKES if one.name != "a coroutine" or flag not in AWAITED]
        turns = range(len(can)) if most is None else range(number * most, (number + 1) * most)
        for turn in turns:
            mistake = can[turn % len(can)]
            path = mistake.path(turn + number)
            yield f"{flag} {path}: {mistake.name}", (*needs.split(), flag, path), (flag, *mistake.says)
