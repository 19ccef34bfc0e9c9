"""`slime-events`: parse the command line, then import and run the chosen command.

Exit codes: 0 done, 1 failed, 2 a wrong argument or a missing run or file, 130 interrupted.
"""

import argparse
import importlib
import inspect
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType

from schemas.errors import ConfigError, InvalidValue, PlugPointError, RunNotFound, SlimeEventsError
from schemas.redaction import shown
from schemas.text import terminal_text
from schemas.trust import name_words
from slime_events.app.cli.arguments import COMMANDS, RETRAIN_BRANCH, module_of, tree
from slime_events.app.cli.process_arguments import hide_arguments
from slime_events.app.terminal import safe_output
from slime_events.core.config.secrets import kept_words

LAUNCHERS = ("demo", "train", "resume", "branch")
"""Commands that have Ray in their process, which may end it."""
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    argv: its arguments; None takes them from this process, which then may start a child.
    """
    words, secrets = kept_words(sys.argv[1:] if argv is None else argv)
    if argv is None:
        sys.excepthook = _print_uncaught
        hide_arguments(secrets.values())
    os.environ.update(secrets)
    with safe_output():
        return _reported(lambda: run_command(words, watch=argv is None))


def run_command(argv: Sequence[str], *, watch: bool = False) -> int:
    """Run one command and return its exit code. Raises its errors. watch: run a launcher in a child of this process."""
    with safe_output():
        return _run_command(argv, watch=watch)


def _run_command(argv: Sequence[str], *, watch: bool) -> int:
    arguments = parse(argv)
    if arguments is None:
        return 0

    def run() -> int:
        import asyncio  # the help does not need it

        code = importlib.import_module(module_of(arguments.command)).run(arguments)
        return int(asyncio.run(code) if inspect.iscoroutine(code) else code)

    if watch and arguments.command in LAUNCHERS:
        from slime_events.app.cli.watched import watched

        return watched(lambda: _reported(run))
    return run()


def parse(argv: Sequence[str]) -> argparse.Namespace | None:
    """Return the parsed arguments, with the command in `command`; None if the help or the version was printed.

    Raises InvalidValue, UnknownFlag.
    """
    words = list(argv)
    name_words(words)
    chosen = words[0] if words else "--help"
    if chosen in ("-h", "--help", "help"):
        tree("").print_help()
        return None
    if chosen in ("-V", "--version"):
        from importlib.metadata import version

        sys.stdout.write(f"slime-events {version('slime-events')}\n")
        return None
    if chosen not in COMMANDS:
        from slime_events.core.config.nearest import did_you_mean

        raise InvalidValue(f"there is no command {chosen!r}.{did_you_mean(chosen, COMMANDS)} See slime-events --help.")
    if chosen == "retrain" and any(word.partition("=")[0] == "--branch" for word in words):
        chosen = RETRAIN_BRANCH
    try:
        return tree(chosen).parse_args([chosen, *words[1:]])
    except SystemExit:  # the help
        return None


def _reported(run: Callable[[], int]) -> int:
    """Return the exit code of `run`; print its errors to standard error."""
    try:
        return run()
    except (ConfigError, PlugPointError, RunNotFound) as error:
        return _error(str(error), 2)
    except SlimeEventsError as error:
        return _error(str(error), 1)
    except ModuleNotFoundError as error:
        from slime_events.plugins.loader import OUR_PACKAGES

        if (error.name or "").partition(".")[0] in OUR_PACKAGES:
            raise
        mend = "`make install`, or, in a clone, pip install '.[train]'"
        return _error(f"the package {error.name} is not installed: {mend}", 1)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError as error:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not poll.poll(0):  # standard output is not closed
            return _error(f"a connection broke unexpectedly: {error}", 1)
        # The reader has closed the pipe (`| head`). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a bug of ours as Python does, without secrets that another package's message may contain."""
    sys.stderr.write(terminal_text(shown("".join(traceback.format_exception(kind, error, trace)))))


def _error(message: str, code: int) -> int:
    for line in terminal_text(message).splitlines() or [""]:
        sys.stderr.write(f"error: {line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
