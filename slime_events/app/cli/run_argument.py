"""`RUN` on a command line: a name under --runs-dir, a path to a run's folder, or the URL of an archived run."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from typing import Any

from schemas.errors import InvalidValue
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder


class RunParser(argparse.ArgumentParser):
    """The arguments of a command that looks at a run: RUN and --runs-dir first. Without RUN it lists the runs."""

    def __init__(self, prog: str, **rest: Any) -> None:
        super().__init__(prog=prog, **rest)
        self._has_asked = False
        self.add_argument("run", metavar="RUN", help="name of a run, path of its folder, or URL of its archive")
        self.add_argument("--runs-dir", default=RUNS_DIR, metavar="DIR", help=f"folder of all runs [{RUNS_DIR}]")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does. Raises InvalidValue where no run is named, once the runs are listed."""
        self._ask_for_run(args)
        return super().parse_known_args(args, namespace)

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `parse_known_args`."""
        self._ask_for_run(args)  # argparse parses in two passes, of which the first knows of no RUN
        return super().parse_intermixed_args(args, namespace)

    def _ask_for_run(self, args: Sequence[str] | None) -> None:
        """Once, before argparse complains of the first other word that is missing."""
        if self._has_asked:
            return
        self._has_asked = True
        required = [action for action in self._actions if action.required]
        for action in required:
            action.required = False
        try:
            said, _ = super().parse_known_args(args)
        finally:
            for action in required:
                action.required = True
        if said.run is None:
            raise no_run(self.prog, said.runs_dir)


def no_run(command: str, runs_dir: str) -> InvalidValue:
    """What to raise where a command that needs a run is given none; lists the runs that there are."""
    from slime_events.app.cli.run_list import run_list

    sys.stdout.write(run_list(runs_dir) + "\n")
    sys.stdout.flush()
    return InvalidValue(f"say which run: {command} RUN (see {command} --help)")


def blob_url(folder: RunFolder) -> str:
    """Where the run keeps large payloads."""
    settings = tomllib.loads(folder.settings.read_text(encoding="utf-8"))
    return str(settings.get("run", {}).get("blob_url") or folder.blobs)


def live_url(folder: RunFolder) -> str | None:
    """The address of the NATS server that the run is on now; None where none of its own lives."""
    from storage.nats.server import NatsServer
    from storage.open_log import URL_FILE

    noted = folder.path / URL_FILE
    if noted.is_file():
        return noted.read_text().strip()
    server = NatsServer.attach(folder.nats)
    return None if server is None or server.record.temporary else server.url
