"""`--agent-command` in a cheap launch: real gateway, conductor, grader and NATS server; the examples' programs make the
rollouts, of an engine that talks nonsense.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from schemas.rewards import RewardAssigned
from schemas.sessions import SealReason, SessionOpened, SessionSealed
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded
from schemas.workers import WorkerLost
from serve_apps.http.agent_command.actor import SOURCE
from serve_apps.http.gateway.sources import Sources
from storage.nats.ports import free_port
from tests.docs.pages import ROOT
from tests.run.cheap import LocalCluster, Parts, cheap_parts, lose
from tests.run.tiny import START_S, Watching, events_of, of, run_with, tiny
from tests.scripted_engine import Script

RUN, GROUPS, SAMPLES = "made", 2, 2
EXAMPLES = ROOT / "examples"


def launch(tmp_path: Path, command: str, *actions: object, **more: dict[str, object]) -> Path:
    """A run of one step whose rollouts the command makes; its folder. more: settings of other components."""
    rollout = {"num_rollout": 1, "rollout_batch_size": GROUPS, "n_samples_per_prompt": SAMPLES, "agents": True}
    with cheap_parts(Parts(script=Script(chunk=8, vocabulary=128, eos=258, stop_chance=0.1))):
        settings = tiny(
            tmp_path,
            RUN,
            rollout=rollout | {"rollout_max_response_len": 16},
            gateway={"gateway": f"127.0.0.1:{free_port()}"},
            agents={"agent_command": command, "agent_concurrency": 2},
            **more,
        )
        asyncio.run(run_with(settings, *actions, view=Watching()))  # type: ignore[arg-type]
    return tmp_path / "runs" / RUN


def check(run: Path, turns: int | None = None) -> None:
    """Each session came to one rollout that was trained on, with the reward that its program said."""
    events = events_of(run)
    sealed = of(events, SessionSealed)
    assert len({event.sample for event in sealed}) == GROUPS * SAMPLES
    assert {(event.reason, event.exit_code, event.reward) for event in sealed} == {(SealReason.REWARD, 0, 0.0)}
    recorded = Counter(event.sample for event in of(events, TurnRecorded))
    assert recorded == {event.sample: event.turns for event in sealed}
    assert turns is None or set(recorded.values()) == {turns}
    assert {event.sample for event in of(events, RewardAssigned)} == recorded.keys()
    assert len(of(events, StepCommitted)) == 1
    assert {event.sender for event in of(events, SessionOpened)} == {SOURCE}
    assert Sources(run).names == [], "its token has ended"
    assert not (run / "agents").exists()


def test_the_search_agent(tmp_path: Path) -> None:
    subprocess.run([sys.executable, EXAMPLES / "search_agent" / "pages.py", tmp_path], check=True)
    words = (sys.executable, EXAMPLES / "search_agent" / "agent.py", tmp_path / "pages.sqlite")
    check(launch(tmp_path, shlex.join(map(str, words))), turns=3)


def test_the_code_agent(tmp_path: Path) -> None:
    words = (sys.executable, EXAMPLES / "code_agent" / "agent.py")
    check(launch(tmp_path, shlex.join(map(str, words))))


ASKS = """
import json, os, pathlib, sys, time, urllib.request
task, begun = json.load(sys.stdin), pathlib.Path(sys.argv[1]) / os.environ["SLIME_EVENTS_SESSION"]
said = {"model": "default", "messages": task["prompt"]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(said).encode(),
    {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(asked))
if not begun.exists():
    begun.touch()
    time.sleep(99)
print(json.dumps({"reward": 0}))
"""


def _until_there_are(count: int, folder: Path) -> None:
    until = time.monotonic() + START_S
    while len(list(folder.iterdir())) < count and time.monotonic() < until:
        time.sleep(0.05)


def test_a_runner_that_was_lost_is_replaced_and_its_sessions_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, clusters = tmp_path / "begun", list[LocalCluster]()
    begun.mkdir()
    begin = LocalCluster.__init__
    monkeypatch.setattr(LocalCluster, "__init__", lambda self, *args: (begin(self, *args), clusters.append(self))[0])

    async def lose_it(view: Watching) -> None:
        for count in (2, 4):  # as many as there are programs at once
            await asyncio.to_thread(_until_there_are, count, begun)
            lose(clusters[-1], "agentcommand")

    (tmp_path / "asks.py").write_text(ASKS)
    run = launch(tmp_path, shlex.join([sys.executable, str(tmp_path / "asks.py"), str(begun)]), lose_it)
    check(run, turns=2)
    events = events_of(run)
    assert [event.role for event in of(events, WorkerLost)] == ["agents", "agents"]
    assert len(of(events, SessionOpened)) == GROUPS * SAMPLES, "the same sessions again"
    assert all(len(event.orphans) == 1 for event in of(events, SessionSealed)), "the lost program's turn trains nothing"
