"""`CommandParser`: separates the arguments of one command from the flags of a run's settings between them."""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from schemas.errors import InvalidValue, UnknownFlag
from schemas.trust import FLAG as TRUST

_NUMBER = re.compile(r"-\.?\d")
Options = argparse.ArgumentParser | argparse._ArgumentGroup


class CommandParser(argparse.ArgumentParser):
    """A parser that raises errors, names the flags nearest to an unknown one, and takes positionals after options."""

    takes_flags = False
    """Whether undeclared words are flags of a run's settings, which are passed through unchanged in `flags`."""
    whole_help: Callable[[], str] | None = None
    """Replaces argparse's help text."""
    _needs_run = False

    def add_run(self, *, beside: bool = False) -> None:
        """Add RUN and --runs-dir. Without RUN, the command lists all runs.

        beside: if --runs-dir is left out, its value is None and the new run is created in RUN's folder of runs.
        """
        from slime_events.core.run.run_folder import RUNS_DIR

        self._needs_run = True
        default = f"that of RUN, or {RUNS_DIR}" if beside else RUNS_DIR
        self.add_argument("run", metavar="RUN", help="name of a run, path of its folder, or URL of its archive")
        self.add_argument(
            "--runs-dir", default=None if beside else RUNS_DIR, metavar="DIR", help=f"folder of all runs [{default}]"
        )
        self.add_argument(TRUST, action="store_true", help=argparse.SUPPRESS)

    def format_help(self) -> str:
        return super().format_help() if self.whole_help is None else self.whole_help()

    def error(self, message: str) -> NoReturn:
        """Raise InvalidValue."""
        raise InvalidValue(f"{message} (see {self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse every argument. Raises InvalidValue, UnknownFlag; SystemExit after it has printed the help."""
        if {"-h", "--help"} & set(args):
            self.print_help()
            self.exit()
        positionals, options, flags = self._split(args)
        if self._needs_run and not positionals:
            from slime_events.app.cli.run_list import run_list
            from slime_events.core.run.run_folder import RUNS_DIR

            folders = [option.partition("=")[2] for option in options if option.startswith("--runs-dir=")]
            print(run_list(next(reversed(folders), "") or RUNS_DIR), flush=True)
            self.error(f"RUN is missing: {self.prog} RUN")
        parsed, extra = super().parse_known_args([*positionals, *options], namespace)
        if extra and not self.takes_flags:
            self.error(f"unrecognized arguments: {' '.join(extra)}")
        parsed.flags = (*extra, *flags)
        return parsed, []

    def _split(self, args: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """Return the positionals, the command's options with their values, and the settings flags with theirs."""
        left = list(args)
        positionals: list[str] = []
        options: list[str] = []
        flags: list[str] = []
        while left:
            word = left.pop(0)
            if (option := self._option(word)) is not None:
                options += self._with_values(word, option, left)
            elif flags or (self.takes_flags and _is_option(word)):
                flags.append(word)
            elif _is_option(word):
                from slime_events.core.config.nearest import nearest_text

                name = word.partition("=")[0]
                near = nearest_text(name, (flag for flag in self._option_string_actions if flag.startswith("--")))
                raise UnknownFlag(f"Unknown flag {name}.{near} See {self.prog} --help.")
            else:
                positionals.append(word)
        return positionals, options, flags

    def _with_values(self, word: str, option: str, left: list[str]) -> list[str]:
        """Return an option with its values, removed from `left`. A single value may begin with a dash: `--at -90s`."""
        nargs, (_, equals, inline) = self._option_string_actions[option].nargs, word.partition("=")
        if nargs == 0:
            return [option + equals + inline]
        if nargs is None and equals:
            return [f"{option}={inline}"]
        if not left or self._option(left[0]) is not None:
            raise InvalidValue(f"{option} needs a value.")
        if nargs is None:
            return [f"{option}={left.pop(0)}"]
        values = [inline] if equals else []
        while left and not _is_option(left[0]):
            values.append(left.pop(0))
        return [option, *values]

    def _option(self, word: str) -> str | None:
        """Return the option of this command that `word` names in full or by a unique prefix."""
        name = word.partition("=")[0]
        if name in self._option_string_actions:
            return name
        if self.takes_flags or not name.startswith("--") or len(name) < 3:
            return None
        begun = [option for option in self._option_string_actions if option.startswith(name)]
        return begun[0] if len(begun) == 1 else None


def _is_option(word: str) -> bool:
    return word[:1] == "-" and len(word) > 1 and " " not in word and _NUMBER.match(word) is None


def weight_version(text: str) -> int:
    """Return the number in `5` or `v5`; a `type` for argparse."""
    number = text.removeprefix("v")
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a weight version: give a number, such as 5")
    return int(number)


def option(to: Options, spec: str, help: str, type: Any = str, default: Any = None, **more: Any) -> None:
    """Add an option with a value. spec: `--name VALUE`."""
    name, metavar = spec.split()
    to.add_argument(name, metavar=metavar, help=help, type=type, default=default, **more)


def switch(to: Options, name: str, help: str) -> None:
    """Add an option without a value."""
    to.add_argument(name, action="store_true", help=help)


def changed_data(parser: CommandParser) -> None:
    """Add --accept-changed-data."""
    switch(parser, "--accept-changed-data", "continue even if a prompt file has changed since RUN read it [refused]")


def nats_options(parser: CommandParser, help: str) -> None:
    """Add the flags that name a NATS server, its credentials and certificates."""
    option(parser, "--nats-url URL", help)
    option(parser, "--nats-creds FILE", "its credentials: JSON with user and password, a .creds file, an nkey's seed")
    option(parser, "--nats-tls-ca FILE", "PEM certificates that verify the server's certificate")
    option(parser, "--nats-tls-cert FILE", "PEM certificate of this client")
    option(parser, "--nats-tls-key FILE", "PEM key of that certificate")
