"""`slime-events doctor`: whether everything that a run needs is here, and how to fix what is not."""

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from slime_events.app.cli.checks import (
    ENGINES_MEND,
    MEGATRON_IMPORTS,
    SGLANG_IMPORTS,
    Check,
    Outcome,
    check_disk,
    check_files,
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

_PSUTIL = "pip install psutil: without it, saving a Megatron checkpoint hangs"
_STYLES = {Outcome.OK: "green", Outcome.WARN: "yellow", Outcome.FAIL: "red bold"}


def diagnose(arguments: argparse.Namespace) -> list[Check]:
    """All checks, two at a time, in a fixed order."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda check: check(), _checks(arguments)))


def _checks(arguments: argparse.Namespace) -> list[Callable[[], Check]]:
    checks: list[Callable[[], Check]] = [check_python]
    if arguments.quick:
        for package in ("torch", "megatron-core", "ray", "sglang"):
            checks.append(partial(check_package, package, f"pip install {package}, pinned as in requirements/"))
    elif arguments.imports:
        checks += [check_torch, check_megatron, check_ray, check_sglang]
    else:
        megatron = partial(check_files, "megatron-core", MEGATRON_IMPORTS, ENGINES_MEND)
        checks += [check_torch, megatron, check_ray, partial(check_files, "sglang", SGLANG_IMPORTS, ENGINES_MEND)]
    checks += [check_reaches, check_shims, partial(check_package, "psutil", _PSUTIL)]
    nodes = arguments.nats_url.split(",") if arguments.nats_url else []
    checks += [partial(check_nats_url, node) for node in nodes] or [check_nats]
    checks += [partial(check_port, port) for port in arguments.port or (0,)]
    checks += [partial(check_disk, arguments.runs_dir), check_memory]
    stores = (("blob-url", arguments.blob_url), ("archive-url", arguments.archive_url))
    return [*checks, *(partial(check_object_store, name, url) for name, url in stores if url)]


def run(arguments: argparse.Namespace) -> int:
    """Print one row per check. 1 where any failed, else 0."""
    checks = diagnose(arguments)
    print_checks(checks)
    return int(any(check.outcome is Outcome.FAIL for check in checks))


def print_checks(checks: Sequence[Check]) -> None:
    """One row per check, then what to fix."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from slime_events.app.cli.render.text import terminal_width

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "", "found"):
        table.add_column(column, overflow="fold")
    for check in checks:
        found = Text(check.found)
        if check.mend:
            found.append(f"\n-> {check.mend}", style="bold")
        table.add_row(check.name, Text(check.outcome, style=_STYLES[check.outcome]), found)
    console = Console(width=terminal_width() or 1000)  # piped lines are whole
    console.print(table)
    failed = [check.name for check in checks if check.outcome is Outcome.FAIL]
    console.print(f"to fix: {', '.join(failed)}" if failed else "This machine can run slime-events.")
