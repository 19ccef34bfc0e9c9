"""`python -m tests.harness.mutation`: put faults into product code; exit 0 if tests notice enough of each area."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.harness.mutation.areas import AREAS, ROOT
from tests.harness.mutation.fault import Fault, equivalents, listed
from tests.harness.mutation.generate import generated
from tests.harness.mutation.hunt import NOTICED, Result, hunt

ENOUGH = 0.95
"""The share that has to be noticed, of the faults that can be."""


STOPPED = 143


def main(argv: Sequence[str] | None = None) -> int:
    """Choose, try, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.mutation", description=__doc__.partition(": ")[2])
    parser.add_argument("--area", action="append", choices=list(AREAS), help="only this part; may be repeated")
    parser.add_argument("--sample", type=int, default=40, help="generated faults of an area, drawn at random [40]")
    parser.add_argument("--all", action="store_true", help="all generated faults: hours")
    parser.add_argument("--seed", type=int, default=1, help="of the sample [1]")
    parser.add_argument("--file", action="append", help="all generated faults of this file only; may be repeated")
    parser.add_argument("--fault", action="append", help="only this one, by its id; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the faults, try none")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="how many at a time [2]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append each outcome to it, a line each")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # so that what was started is ended
    faults = list(_chosen(options))
    if options.fault and not faults:
        parser.error(f"no fault has the id {', '.join(options.fault)}: --list prints them")
    possible = [fault for fault in faults if not fault.equivalent]
    if options.list:
        for fault in faults:
            print(_line(fault, fault.line((ROOT / fault.file).read_bytes())), fault.equivalent and "(equivalent)")
        return 0

    def tell(result: Result) -> None:
        _tell(result)
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_row(result)) + "\n")

    results, reach = hunt(possible, options.jobs, ROOT / "build" / "mutation", tell)
    for name in reach.failed:
        print(f"not used, as it fails or is skipped without a fault: {name}")
    return _judge(faults, results)


def _chosen(options: argparse.Namespace) -> Iterator[Fault]:
    reasons = equivalents()
    areas = options.area or list(AREAS)
    faults = [fault for fault in listed() if fault.area in areas or not options.area]
    for area in areas:
        every = [f for file in AREAS[area].paths(ROOT) for f in generated(area, file, ROOT, reasons)]
        random.Random(f"{options.seed} {area}").shuffle(every)  # a larger sample has the smaller in it
        faults += every if options.all or options.fault or options.file else every[: options.sample]
    faults = [fault for fault in faults if not options.file or fault.file in options.file]
    return (fault for fault in faults if not options.fault or fault.id in options.fault)


def _line(fault: Fault, line: int) -> str:
    old, new = (" ".join(text.split()) for text in (fault.old, fault.new))
    reason = fault.why or fault.change
    return f"{fault.id} {fault.area:9} {fault.file}:{line} {reason}: {old[:70]!r} -> {new[:70]!r}"


def _tell(result: Result) -> None:
    if result.outcome not in NOTICED:
        print(f"{result.outcome}: {_line(result.fault, result.line)}", flush=True)


def _row(result: Result) -> dict[str, object]:
    fault = result.fault
    row = {"id": fault.id, "area": fault.area, "file": fault.file, "line": result.line, "change": fault.change}
    row |= {"old": fault.old, "new": fault.new, "outcome": result.outcome, "by": result.by}
    return row | {"took_s": round(result.took_s, 2)}


def _judge(faults: Sequence[Fault], results: Sequence[Result]) -> int:
    """The table, and 1 if an area has too little."""
    print(f"{'area':10} {'listed':>10} {'generated':>10} {'equivalent':>10} {'share':>8}")
    short = False
    for area in dict.fromkeys(fault.area for fault in faults):
        of_area = [result for result in results if result.fault.area == area]
        both = [[r.outcome in NOTICED for r in of_area if (r.fault.change == "listed") is own] for own in (True, False)]
        same = sum(fault.area == area and bool(fault.equivalent) for fault in faults)
        share = sum(map(sum, both)) / max(1, len(of_area))
        short |= bool(of_area) and share < ENOUGH
        listed_part, generated_part = (f"{sum(part)}/{len(part)}" for part in both)
        print(f"{area:10} {listed_part:>10} {generated_part:>10} {same:>10} {share:>8.1%}")
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
