"""The family: what is found among descendants, what is killed, and what is left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TRIAL = """
import json, os, subprocess, sys, time
from tests.harness.chaos.family import Family
from tests.harness.chaos.schedule import Kind

def sleeper(*words):
    return [sys.executable, "-c", "import time; time.sleep(600)", *words]

family = Family()
family.adopt_orphans()
stranger = int(sys.argv[1])
parent = subprocess.Popen([sys.executable, "-c",
    "import subprocess, sys, time; "
    "child = subprocess.Popen(sys.argv[1:]); print(child.pid, flush=True); time.sleep(600)",
    *sleeper("ray::ServeReplica")], stdout=subprocess.PIPE)
orphan = int(parent.stdout.readline())
facts = {"before": family.find(Kind.ENGINE).pid == parent.pid or family.find(Kind.ENGINE).pid == orphan}
parent.kill(); parent.wait()
found = family.find(Kind.ENGINE)
facts["adopted"] = found.pid == orphan and found.ppid() == os.getpid()
facts["joined"] = family.find(Kind.TRAINER, [orphan]).pid == orphan
facts["not of the family"] = family.find(Kind.TRAINER, [stranger]) is None
facts["killed"] = family.kill(found) and family.left(10.0) == [] and not family.kill(found)
other = subprocess.Popen(sleeper("something"))
facts["left"] = [line.split()[-1] for line in family.left(0.2)]
family.end()
facts["none"] = family.members() == []
print(json.dumps(facts))
"""


def test_orphans_stay_in_the_family_and_strangers_are_not_touched(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "ray::ServeReplica"]) as stranger:
        try:
            done = subprocess.run(
                [sys.executable, "-c", TRIAL, str(stranger.pid)], capture_output=True, text=True, timeout=60, check=True
            )
            assert stranger.poll() is None
        finally:
            stranger.kill()
    assert json.loads(done.stdout) == {
        "before": True,
        "adopted": True,
        "joined": True,
        "not of the family": True,
        "killed": True,
        "left": ["something"],
        "none": True,
    }


TEMPLATED = """
import json, subprocess, sys
from tests.harness.chaos.family import Family
from tests.harness.chaos.schedule import Kind

# A host that forks its template first, which shares its command line, and then starts its scheduler.
host = subprocess.Popen([sys.executable, "-c",
    "import os, subprocess, sys, time\\n"
    "if os.fork() == 0: time.sleep(600)\\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\\n"
    "print(child.pid, flush=True); time.sleep(600)", "serve_apps.engines.host"], stdout=subprocess.PIPE)
scheduler = int(host.stdout.readline())
family = Family()
print(json.dumps(family.find(Kind.SCHEDULER).pid == scheduler))
family.end()
"""


def test_the_template_of_hosts_is_no_scheduler() -> None:
    done = subprocess.run([sys.executable, "-c", TEMPLATED], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)
