"""`RUN` on a command line: a name under --runs-dir, a path to a run's folder, or the URL of an archived run."""

from __future__ import annotations

import argparse
import tomllib

from slime_events.run_folder import RUNS_DIR, RunFolder


def add_run(parser: argparse.ArgumentParser) -> None:
    """The arguments of every command that looks at a run."""
    parser.add_argument("run", metavar="RUN", help="name of a run, path of its folder, or URL of its archive")
    parser.add_argument("--runs-dir", default=RUNS_DIR, metavar="DIR", help=f"folder of all runs [{RUNS_DIR}]")


def blob_url(folder: RunFolder) -> str:
    """Where the run keeps large payloads."""
    settings = tomllib.loads(folder.settings.read_text(encoding="utf-8"))
    return str(settings.get("run", {}).get("blob_url") or folder.blobs)


def live_url(folder: RunFolder) -> str | None:
    """The address of the NATS server that the run is on now; None where none of its own lives."""
    from storage.connect import URL_FILE
    from storage.nats_server import NatsServer

    noted = folder.path / URL_FILE
    if noted.is_file():
        return noted.read_text().strip()
    server = NatsServer.attach(folder.nats)
    return None if server is None or server.facts.temporary else server.url
