"""`slime-events`: reads the command line by the argument tree, then imports and runs the chosen command.

Exit codes: 0 done, 1 failed, 2 a wrong question or something that is not there, 130 interrupted.
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
"""Those that have Ray in their process, which may end it."""
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Without argv those of this process, which then may get a child."""
    words, secrets = kept_words(sys.argv[1:] if argv is None else argv)
    if argv is None:
        sys.excepthook = _print_uncaught
        hide_arguments(secrets.values())
    os.environ.update(secrets)
    with safe_output():
        return _reported(lambda: run_command(words, watch=argv is None))


def run_command(argv: Sequence[str], *, watch: bool = False) -> int:
    """As `main`; errors are raised. watch: a launcher runs in a child of this process."""
    with safe_output():
        return _run_command(argv, watch=watch)


def _run_command(argv: Sequence[str], *, watch: bool) -> int:
    arguments = parse(argv)
    if arguments is None:
        return 0

    def run() -> int:
        import asyncio  # the help needs none of it

        code = importlib.import_module(module_of(arguments.command)).run(arguments)
        return int(asyncio.run(code) if inspect.iscoroutine(code) else code)

    if watch and arguments.command in LAUNCHERS:
        from slime_events.app.cli.watched import watched

        return watched(lambda: _reported(run))
    return run()


def parse(argv: Sequence[str]) -> argparse.Namespace | None:
    """The arguments of the chosen command, in `command`; None once a help or the version is printed.

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
    """The exit code; errors as sentences on standard error."""
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
        if not poll.poll(0):  # what is printed to is not closed
            return _error(f"a connection broke unexpectedly: {error}", 1)
        # The reader has closed the pipe (`| head`). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An error that is ours to mend, as Python prints it, without secrets in the words of other packages."""
    sys.stderr.write(terminal_text(shown("".join(traceback.format_exception(kind, error, trace)))))


def _error(message: str, code: int) -> int:
    for line in terminal_text(message).splitlines() or [""]:
        sys.stderr.write(f"error: {line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
