"""`slime-events doctor`: is everything here that a run needs, and how to mend what is not."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slime_events.app.cli.checks import (
    ENGINES_MEND,
    Check,
    Outcome,
    check_disk,
    check_megatron,
    check_memory,
    check_nats,
    check_nats_url,
    check_object_store,
    check_package,
    check_port,
    check_python,
    check_ray,
    check_reaches,
    check_sglang,
    check_shims,
    check_torch,
)
from slime_events.app.cli.installed_files import MEGATRON_IMPORTS, SGLANG_IMPORTS, check_files

_PSUTIL = "pip install psutil: without it, saving a Megatron checkpoint hangs"
_STYLES = {Outcome.OK: "green", Outcome.WARN: "yellow", Outcome.FAIL: "red bold"}


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What to look at beyond the installation. `quick` imports nothing, `imports` the heaviest packages too (20 s)."""

    runs_dir: Path = Path("slime-runs")
    nats_url: str | None = None
    stores: tuple[tuple[str, str], ...] = ()
    ports: tuple[int, ...] = ()
    quick: bool = False
    imports: bool = False


def diagnose(options: DoctorOptions) -> list[Check]:
    """All checks, two at a time, in a fixed order."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda check: check(), _checks(options)))


def _checks(options: DoctorOptions) -> list[Callable[[], Check]]:
    checks: list[Callable[[], Check]] = [check_python]
    if options.quick:
        for package in ("torch", "megatron-core", "ray", "sglang"):
            checks.append(partial(check_package, package, f"pip install {package}, pinned as in requirements/"))
    elif options.imports:
        checks += [check_torch, check_megatron, check_ray, check_sglang]
    else:
        megatron = partial(check_files, "megatron-core", MEGATRON_IMPORTS, ENGINES_MEND)
        checks += [check_torch, megatron, check_ray, partial(check_files, "sglang", SGLANG_IMPORTS, ENGINES_MEND)]
    checks += [check_reaches, check_shims, partial(check_package, "psutil", _PSUTIL)]
    nodes = options.nats_url.split(",") if options.nats_url else []
    checks += [partial(check_nats_url, node) for node in nodes] or [check_nats]
    checks += [partial(check_port, port) for port in options.ports or (0,)]
    checks += [partial(check_disk, options.runs_dir), check_memory]
    return [*checks, *(partial(check_object_store, name, url) for name, url in options.stores)]


def main(argv: Sequence[str] = ()) -> int:
    """Print one row per check. 1 where any failed, else 0."""
    checks = diagnose(_options(argv))
    _print(checks)
    return int(any(check.outcome is Outcome.FAIL for check in checks))


def _options(argv: Sequence[str]) -> DoctorOptions:
    parser = argparse.ArgumentParser(prog="slime-events doctor", description=__doc__)
    parser.add_argument("--runs-dir", type=Path, default=Path("slime-runs"), help="folder of all runs")
    parser.add_argument(
        "--nats-url", help="a NATS server of your own, or the nodes of a cluster with commas, instead of the binary"
    )
    parser.add_argument("--blob-url", help="fsspec URL of large payloads")
    parser.add_argument("--archive-url", help="fsspec URL of the archive")
    parser.add_argument("--port", type=int, action="append", default=[], help="a port that should be free (repeatable)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="look at versions only; import nothing")
    how.add_argument(
        "--imports", action="store_true", help="import SGLang and Megatron-core too, not only look at their files"
    )
    said = parser.parse_args(argv)
    stores = tuple((name, url) for name, url in (("blob-url", said.blob_url), ("archive-url", said.archive_url)) if url)
    return DoctorOptions(said.runs_dir, said.nats_url, stores, tuple(said.port), said.quick, said.imports)


def _print(checks: Sequence[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "", "found"):
        table.add_column(column, overflow="fold")
    for check in checks:
        found = Text(check.found)
        if check.mend:
            found.append(f"\n-> {check.mend}", style="bold")
        table.add_row(check.name, Text(check.outcome, style=_STYLES[check.outcome]), found)
    console = Console()
    console.print(table)
    failed = [check.name for check in checks if check.outcome is Outcome.FAIL]
    console.print(f"to mend: {', '.join(failed)}" if failed else "This machine can run slime-events.")
