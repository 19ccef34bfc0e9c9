"""`python -m tests.cli.golden [--write]`: says which files differ, or renews them."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.cli.golden import FILES, LINE_COMMANDS, output_of, prepare, surroundings


def main() -> int:
    """1 where a file differs and is not renewed."""
    parser = argparse.ArgumentParser(prog="python -m tests.cli.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the files")
    write = parser.parse_args().write
    differing = 0
    with tempfile.TemporaryDirectory() as folder, surroundings(Path(folder)):
        prepare(Path(folder))
        for name in LINE_COMMANDS:
            file, text = FILES / f"{name}.txt", output_of(name, Path(folder))
            if file.exists() and file.read_text(encoding="utf-8") == text:
                continue
            print(f"{name} differs", file=sys.stderr)
            differing += 1
            if write:
                file.write_text(text, encoding="utf-8")
    return int(differing > 0 and not write)


if __name__ == "__main__":
    sys.exit(main())
