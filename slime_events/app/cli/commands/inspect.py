"""`slime-events inspect`: find reward hacking and failures in a run. Exit code 1 if anything is found, else 0."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.analysis.query import RunTables, tables_of
from slime_events.analysis.query.database import NO_REWARDS
from slime_events.analysis.query.detectors import ALARMS, DETECTORS
from slime_events.analysis.query.detectors.detector import Detector
from slime_events.analysis.query.inspection import changed_rewards, inspect, second_rewards
from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.rescore import rescore
from slime_events.app.cli.render.inspect_text import detectors_text, inspection_text
from slime_events.app.cli.render.text import json_text
from slime_events.app.launch.run_status import is_launched
from slime_events.core.config.nearest import did_you_mean
from slime_events.core.config.reach import check_reach
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.loop.learner.overrides import read_overrides
from slime_events.model.json_values import plain


async def run(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if there are any."""
    if arguments.list:
        print(detectors_text(DETECTORS))
        return 0
    if arguments.flags and arguments.changes:
        raise ImpossibleCombination("Give flags of a second grader or --changes, not both.")
    compares = bool(arguments.flags or arguments.changes)
    detectors = _chosen(arguments.only, alarms=arguments.alarms, compares=compares)
    async with open_run(arguments.run, arguments.runs_dir) as opened, tables_of(opened) as tables:
        rewards = NO_REWARDS
        if arguments.flags:
            rewards = await _graded_again(opened, arguments.flags)
        elif arguments.changes:
            rewards = await _recorded(tables, arguments.changes)
        is_on = opened.folder is not None and await is_launched(opened.folder, opened.log)
        inspection = await inspect(tables, opened.run, opened.where, detectors, rewards, is_on=is_on)
    if arguments.json:
        sys.stdout.write(json_text(plain(inspection)))
    else:
        print(inspection_text(inspection, arguments.run))
    return 1 if inspection.with_findings else 0


def _chosen(names: Sequence[str], *, alarms: bool, compares: bool) -> list[Detector]:
    """Return the detectors to run. compares: whether there is a second grader. Raises InvalidValue."""
    every = {detector.name: detector for detector in DETECTORS}
    for name in names:
        if name not in every:
            raise InvalidValue(f"there is no detector {name}.{did_you_mean(name, every)} See --list.")
        if every[name].needs_second_grader and not compares:
            raise InvalidValue(f"{name} compares two graders: give a flag such as --rm-type, or --changes FILE")
    listed = [every[name] for name in dict.fromkeys(names)] or list(ALARMS if alarms else DETECTORS)
    return [detector for detector in listed if compares or not detector.needs_second_grader]


async def _graded_again(opened: OpenedRun, flags: Sequence[str]) -> pa.Table:
    """Return the rewards of the grader that the flags name. Raises ConfigError, PlugPointError."""
    check_reach(opened.settings, "rollout", "reward", "algorithm", flags=flags)
    change = make_change(opened.settings, flags)
    if not change.regrade:
        raise InvalidValue(f"{' '.join(flags)} names no grader: give --rm-type or --custom-rm-path")
    rewards: dict[str, float | None] = {}
    report = await rescore(opened, change, on_grade=rewards.__setitem__)
    if failed := report.samples.failed.total():
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in report.samples.failed.most_common())
        sys.stderr.write(f"note: the second grader failed on {failed:,} answers, which are left out: {kinds}\n")
    return second_rewards(rewards)


async def _recorded(tables: RunTables, path: str) -> pa.Table:
    """Return the rewards of a recorded rescoring. Raises InvalidValue."""
    try:
        changes = read_overrides(await asyncio.to_thread(Path(path).read_bytes), path)
    except OSError as error:
        raise InvalidValue(f"--changes {path} cannot be read: {error}") from error
    return await changed_rewards(tables, changes.rewards)
