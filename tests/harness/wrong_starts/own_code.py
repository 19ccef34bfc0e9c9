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
    "--rollout-data-postprocess-path": "",
    "--custom-convert-samples-to-train-data-path": "",
    "--custom-update-weight-post-write-path": "",
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
    "mistaken.py": "number = 7\n\n\ndef takes_none(): ...\n\n\nclass Made: ...\n\n\nasync def waits(*_, **__): ...\n",
    "breaking.py": "\n1 / 0\n",
    "leaving.py": "import sys\nsys.exit(0)\n",
    "garbled.py": "def reward(:\n",
    "needing.py": "import no_such_package_anywhere\n",
    "newer.py": "from slime.utils.types import Sample\nfrom slime.utils.wandb_utils import init\n",
    "older.py": "from slime.utils.types import Sampel\n",
    "importing_breaking.py": "import breaking\n",
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
        """Return the path as a user writes it on the command line. turn: index of the spelling."""
        return self.spellings[turn % len(self.spellings)].format(self.module, self.function)


MISTAKES = (
    Mistake("no such module", "no_such_module", "f", ("no_such_module",)),
    Mistake("no such file", "../elsewhere/mistaken", "f", ("/elsewhere/mistaken.py",), ("{}.py:{}",)),
    Mistake("no such name", "mistaken", "takes_nine", ("mistaken.py", "nearest: takes_none")),
    Mistake("no name", "mistaken", "", ("mistaken",), ("{}", "{}:")),
    Mistake("two spellings in one", "mistaken", "f", ("mistaken.py:f", "mistaken.f"), ("{}.py.{}",)),
    Mistake("no text", "", "", ("empty",), ("",)),
    Mistake("no function", "mistaken", "number", ("mistaken.py", "int")),
    Mistake("other arguments", "mistaken", "takes_none", ("takes_none()", "mistaken.py:4", "is called with")),
    Mistake("a class", "mistaken", "Made", ("Made",)),
    Mistake("a coroutine", "mistaken", "waits", ("waits", "mistaken.py:10", "async def")),
    Mistake("no Python", "garbled", "f", ("SyntaxError", "garbled.py, line 1")),
    Mistake("its import raises", "breaking", "f", ("ZeroDivisionError", "breaking.py:2")),
    Mistake("what it imports raises", "importing_breaking", "f", ("ZeroDivisionError", "breaking.py:2")),
    Mistake("its import exits", "leaving", "f", ("SystemExit", "leaving.py:2")),
    Mistake("a package is missing", "needing", "f", ("no_such_package_anywhere", "needing.py:1")),
    Mistake("a module of slime's that is not here", "newer", "f", ("slime.utils.wandb_utils", "newer.py:2")),
    Mistake("a name of slime's that is not here", "older", "f", ("Sampel", "older.py:1")),
    Mistake("a path of slime's that is not here", "slime.rollout.nowhere", "f", ("slime.rollout.nowhere",),
            ("{}.{}", "{}:{}")),
)  # fmt: skip


def wrong_code(most: int | None = None) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Yield a name, flags, and the words that the message must have, for each plug point with each mistake.

    most: mistakes per plug point, others for the next one; None: all of them.
    """
    for number, (flag, needs) in enumerate(POINTS.items()):
        can = [mistake for mistake in MISTAKES if mistake.name != "a coroutine" or flag not in AWAITED]
        turns = range(len(can)) if most is None else range(number * most, (number + 1) * most)
        for turn in turns:
            mistake = can[turn % len(can)]
            path = mistake.path(turn + number)
            yield f"{flag} {path}: {mistake.name}", (*needs.split(), flag, path), (flag, *mistake.says)
