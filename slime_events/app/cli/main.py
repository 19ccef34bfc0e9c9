"""`slime-events`: the first word names the command, which alone is imported.

Exit codes: 0 done, 1 it failed, 2 it was asked for what cannot be or is not there, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import select
import sys
from collections.abc import Sequence

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("slime_events.app.cli.commands.demo", "a real run on a tiny model that plainly learns, in minutes"),
    "train": ("slime_events.app.cli.commands.train", "train with slime's flags, or the same as TOML"),
    "resume": (
        "slime_events.app.cli.commands.resume",
        "go on with a run that was interrupted, has failed or was killed",
    ),
    "branch": (
        "slime_events.app.cli.commands.branch",
        "a new run that goes on from a weight version of another, settings changed",
    ),
    "learn": (
        "slime_events.app.cli.commands.learn",
        "a second trainer on the rollouts of a run, with its own settings and changes",
    ),
    "tail": ("slime_events.app.cli.commands.tail", "follow the events of a run, with filters"),
    "show": (
        "slime_events.app.cli.commands.show",
        "a run, step, group, sample, weight version or trace, out of the log",
    ),
    "lineage": (
        "slime_events.app.cli.commands.lineage",
        "what a weight version was made of, and what became of a sample",
    ),
    "query": (
        "slime_events.app.cli.commands.query",
        "SQL over a run: tables of samples, groups, steps, versions and more",
    ),
    "retrain": (
        "slime_events.app.cli.commands.retrain",
        "steps trained again from the log: to the same digests, or where not",
    ),
    "replay": (
        "slime_events.app.cli.commands.replay",
        "the conductor's decisions made again: the same, or the first difference",
    ),
    "replay-rollout": (
        "slime_events.app.cli.commands.replay_rollout",
        "one rollout once more, from an engine with its weights",
    ),
    "audit": (
        "slime_events.app.cli.commands.audit",
        "is a run's whole history what it has to be: every check and its counts",
    ),
    "rescore": (
        "slime_events.app.cli.commands.rescore",
        "what another reward, filter or advantage would have made of a run",
    ),
    "export": (
        "slime_events.app.cli.commands.export",
        "a run's samples as slime's dumps, JSON lines, Parquet or a data set",
    ),
    "archive": (
        "slime_events.app.cli.commands.archive",
        "bring a run's archive up to the end of its log, verify it, mend it",
    ),
    "restore": ("slime_events.app.cli.commands.restore", "a run's folder and log again, from the archive alone"),
    "produce": ("slime_events.app.cli.commands.produce", "send prompts from a file to a run that is on"),
    "doctor": (
        "slime_events.app.cli.commands.doctor",
        "is everything here that a run needs, and how to mend what is not",
    ),
}
LAUNCHERS = ("demo", "train", "resume", "branch")
"""Those that have Ray in their process, which may end it."""
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Without argv those of this process, which then may get a child."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0
    if words[0] in ("-V", "--version"):
        from importlib.metadata import version

        sys.stdout.write(f"slime-events {version('slime-events')}\n")
        return 0
    if words[0] not in COMMANDS:
        from slime_events.core.config.nearest import did_you_mean

        return _error(
            f"there is no command {words[0]!r}.{did_you_mean(words[0], COMMANDS)} See slime-events --help.", 2
        )
    module, rest = COMMANDS[words[0]][0], words[1:]
    if argv is None and words[0] in LAUNCHERS and not {"-h", "--help"} & set(rest):
        from slime_events.app.cli.watched import watched

        return watched(lambda: _run(module, rest))
    return _run(module, rest)


def usage() -> str:
    """The help of `slime-events` itself."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join([
        "usage: slime-events COMMAND [...]",
        "",
        *lines,
        "",
        "slime-events COMMAND --help says what each takes; slime-events --version says which this is.",
        "",
    ])  # fmt: skip


def _run(module: str, words: list[str]) -> int:
    from schemas.errors import ConfigError, PlugPointError, RunNotFound, SlimeEventsError
    from slime_events.plugins.loader import OUR_PACKAGES

    try:
        return int(importlib.import_module(module).main(words))
    except (ConfigError, PlugPointError, RunNotFound) as error:
        return _error(str(error), 2)
    except SlimeEventsError as error:
        return _error(str(error), 1)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OUR_PACKAGES:
            raise
        mend = "`make install`, or, in a clone, pip install '.[train]'"
        return _error(f"the package {error.name} is not installed: {mend}", 1)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError as error:
        if not _reader_has_gone():
            return _error(f"a connection broke, and nobody expected it: {error}", 1)
        # Whoever read has gone (`| head`). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _reader_has_gone() -> bool:
    """Whether nobody reads what is printed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))


def _error(message: str, code: int) -> int:
    for line in message.splitlines() or [""]:
        sys.stderr.write(f"error: {line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
