"""`python -m tests.harness.strangers --seed S`: strangers in a real run; exit 0 only if it ends as without them.

Somebody with the credentials of the run's roles leaves foreign records in its log while it is on. Others, who hold a
producer's, a viewer's or none, do what they may not. The run has to end with the weights of the run that nobody
disturbed, every command has to name each record and be troubled by none, and the server has to refuse each of the acts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from storage.log import ForeignRecord, Recorded
from storage.nats.server import NatsServer
from storage.open_log import open_run_log
from tests.harness.chaos import measures
from tests.harness.chaos.family import Family
from tests.harness.chaos.reference import Reference, reference
from tests.harness.chaos.run import while_running
from tests.harness.chaos.servers import OwnServer
from tests.harness.chaos.settings import RUN, ChaosSettings
from tests.harness.chaos.supervisor import RunBroke, Supervisor
from tests.harness.strangers.forbidden import acts_of, commit_all
from tests.harness.strangers.intruder import LOOK_S, Intruder

STEPS, WRITES = 6, 300
DEADLINE_S = 900.0
COMMAND_S = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.strangers", description="foreign records in a real run"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is written where [1]")
    parser.add_argument("--writes", type=int, default=WRITES, help=f"foreign records [{WRITES}]")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps [{STEPS}]")
    parser.add_argument("--keep", action="store_true", help="leave the run's folder also where all held")
    options = parser.parse_args(argv)
    settings = ChaosSettings(steps=options.steps)
    expected = reference(settings)
    folder = Path(tempfile.mkdtemp(prefix="slime-strangers-"))
    facts = {"seed": options.seed, "steps": options.steps} | disturbed(settings, options, folder, expected)
    if facts["broken"] or options.keep:
        facts["folder"] = str(folder)
    else:
        shutil.rmtree(folder)
    print(json.dumps(facts, indent=2))
    return int(bool(facts["broken"]))


def disturbed(
    settings: ChaosSettings, options: argparse.Namespace, folder: Path, expected: Reference
) -> dict[str, Any]:
    """Do the run with strangers in it, and return the facts for the report."""
    family = Family()
    supervisor = Supervisor(settings.start(folder), settings.resume(folder), folder / "output")
    intruder = Intruder(RUN, OwnServer(folder / RUN).url, options.writes, options.seed)
    begun, broken, let = time.monotonic(), [], list[str]()

    async def trespass() -> None:
        while len(intruder.left) < options.writes // 2:  # noqa: ASYNC110  the run is well on then
            await asyncio.sleep(LOOK_S)
        server = NatsServer.attach(folder / RUN / "nats")
        let.extend(await commit_all(RUN, server.address) if server else ["no server was there"])
        facts["acts"] = dict(Counter(str(act.who or "nobody") for act in acts_of(RUN)))

    facts: dict[str, Any] = {}
    try:
        beside = [intruder.intrude(), trespass()]
        asyncio.run(asyncio.wait_for(while_running(supervisor.run(), beside), DEADLINE_S))
    except (RunBroke, TimeoutError) as error:
        broken.append(f"the run did not end well: {error!r}")
    finally:
        seconds = time.monotonic() - begun
        family.end()
    facts |= {"writes": len(intruder.left), "kinds": dict(sorted(intruder.kinds.items()))}
    if "acts" not in facts:
        broken.append("the forbidden acts were not done before the run was over")
    broken += [f"not refused: {act}" for act in let]
    facts |= {"seconds": round(seconds, 1), "seconds_undisturbed": round(expected.seconds, 1)}
    if not broken:
        broken += judged(intruder, folder, expected, options.writes, facts)
    return facts | {"broken": broken}


def judged(intruder: Intruder, folder: Path, expected: Reference, writes: int, facts: dict[str, Any]) -> list[str]:
    """Return what does not hold, a sentence for each."""
    broken = []
    records = asyncio.run(_records(folder / RUN))
    events = [record.envelope.event for record in records if isinstance(record, Recorded)]
    foreign = {record.position: record for record in records if isinstance(record, ForeignRecord)}
    facts |= {"events": len(events), "foreign": len(foreign)}
    facts["reasons"] = dict(Counter(record.reason.name for record in foreign.values()))
    if len(intruder.left) != writes:
        broken.append(f"{len(intruder.left)} of {writes} records were written before the run was over")
    for left in intruder.left:
        record = foreign.pop(left.position, None)
        if record is None or (record.reason, record.data) != (left.reason, left.write.data):
            broken.append(f"{left.kind} at position {left.position} is {record and record.reason}, not {left.reason}")
    broken += [f"position {position} is foreign, and nobody wrote it" for position in foreign]
    if (digests := measures.weight_digests(events)) != expected.digests:
        broken.append(f"the weights are not those of the undisturbed run: {digests} against {expected.digests}")
    return broken + _commands(intruder, folder)


async def _records(run_folder: Path) -> list[Recorded | ForeignRecord]:
    async with open_run_log(run_folder) as log:
        return [record async for record in log.read_records()]


def _commands(intruder: Intruder, folder: Path) -> list[str]:
    """Return wrong answers of commands about the run, its archive and the run restored from the archive."""
    run, archive, again = str(folder / RUN), folder / RUN / "archive", folder / "again"
    broken = []
    written = [(left.position, len(left.write.data), left.reason.value) for left in intruder.left]
    commands = {
        "audit": [run, "--json"],
        "audit of the archive": [f"{archive}/{RUN}", "--json"],
        "archive": [run, "--verify"],
        "restore": [RUN, str(archive), "--runs-dir", str(again)],
        "audit of what was restored": [str(again / RUN), "--json", "--no-files"],
        "show": [run, "--json"],
        "show --verify": [run, "--verify"],
        "replay": [run],
        "query": [run, "SELECT count(*) FROM rewards"],
        "lineage": [run, "--version", "2"],
        "tail": [run, "--no-follow"],
        "export": [run, "--to", "jsonl", "--out", f"{folder}/samples.jsonl"],
    }
    for what, arguments in commands.items():
        command = [what.split()[0], *arguments]
        done = _slime_events(*command)
        if done.returncode:
            broken.append(f"{what} exits {done.returncode}: {(done.stdout + done.stderr)[-600:].strip()}")
        elif "--json" in command:
            answer = json.loads(done.stdout)["foreign"]
            count, names = (answer["count"], answer["last"]) if what == "show" else (len(answer), answer)
            named = [(entry["position"], entry["size"], entry["why"]) for entry in names]
            if count != len(written) or not named or named != written[-len(named) :]:
                broken.append(f"{what} speaks of {count} records and names {len(named)}, {len(written)} were written")
    return broken


def _slime_events(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slime_events.app.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)


if __name__ == "__main__":
    sys.exit(main())
