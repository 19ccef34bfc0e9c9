"""`python -m tests.security.fuzz NAME --seconds 60`: one decoder under atheris, which looks for new paths through it.

It ends with 0 where nothing broke; else with the bytes that did, in a file. Without a name it lists them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MODULES = ("schemas", "serve_apps.rollouts.agents", "serve_apps.http.gateway", "slime_events.loop.prompts", "storage")
"""What is watched for new paths: the decoders, and what they call of ours."""


def main(argv: Sequence[str] | None = None) -> None:
    """One after the other is one process each: libFuzzer ends its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.fuzz", description=__doc__)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--found", type=Path, default=Path("."), help="folder for bytes that broke it")
    arguments = parser.parse_args(argv)
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=list(MODULES)):
        from tests.security.decoders import DECODERS
    if arguments.name is None:
        print(*DECODERS, sep="\n")
        return
    decoder = DECODERS[arguments.name]

    def try_one(data: bytes) -> None:
        with contextlib.suppress(*decoder.raises):
            decoder.read(data)

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(decoder.seeds):
            Path(corpus, str(number)).write_bytes(seed)
        flags = [f"-max_total_time={arguments.seconds}", f"-artifact_prefix={arguments.found}/", "-verbosity=0"]
        atheris.Setup([sys.argv[0], corpus, *flags], try_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
