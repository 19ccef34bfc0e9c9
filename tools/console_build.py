"""Build the console's page from its sources: `python -m tools.console_build`, which needs npm. Exit code 1 if the files
in `dist` were not those of the sources.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.console_types import PAGE, types_text

CLIENT = Path(__file__).parents[1] / "serve_apps/http/console/client"
DIST = CLIENT.parent / "dist"


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def build(out: Path) -> None:
    """Install the locked packages, check the types, and build into a folder. Raises CalledProcessError."""
    for command in (
        ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"),
        ("npm", "run", "check"),
        ("node", "build.mjs", str(out)),
    ):
        subprocess.run(command, cwd=CLIENT, check=True, stdout=sys.stderr)


def main() -> int:
    PAGE.write_text(types_text(), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        made, kept = files_of(Path(folder)), files_of(DIST) if DIST.is_dir() else {}
    changed = sorted(name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name))
    if not changed:
        print(f"{DIST} is that of the sources: {', '.join(made)}")
        return 0
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for name, data in made.items():
        (DIST / name).write_bytes(data)
    print(f"{DIST} was not that of the sources, and is now: {', '.join(changed)}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
