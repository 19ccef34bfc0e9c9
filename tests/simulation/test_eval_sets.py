"""A run that is evaluated on two sets with settings of their own, from their YAML file to what commands say of it."""

from __future__ import annotations

import asyncio
import json
import shlex
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from schemas.evals import EvalCompleted
from schemas.event import Purpose
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutRequested, Sampling
from serve_apps.rollouts.generate.function import generate_setup
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.settings import TrainSettings
from slime_events.core.state.run import RunPhase
from slime_events.loop.conductor.plan import make_plan
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.source import PromptSource, eval_sources
from slime_events.plugins.rewards.dispatcher import Dispatcher
from tests import made
from tests.cli.invoke import command
from tests.scripted_engine import Script
from tests.simulation.parts import Letters
from tests.simulation.simulation import Simulation
from tests.simulation.test_exact_evaluations import check_exact, check_training
from tests.simulation.test_run import check_run

SETS = """
defaults:
  max_response_len: 24
  metadata_overrides: {level: 1}
datasets:
  - name: exact
    path: exact.jsonl
    rm_type: exact
    temperature: 0
    max_response_len: 8
  - name: own
    path: own.jsonl
    input_key: question
    label_key: null
    n_samples_per_eval_prompt: 4
    top_k: 3
    stop: ["#"]
    custom_rm_path: graders.py:own
    custom_generate_function_path: answers.py:answer
    metadata_overrides: {level: 2}
"""
GRADERS = """
def run(args, sample):
    return 0.5

def own(args, sample):
    assert sample.metadata["level"] == 2 and sample.label is None
    return float(len(set(sample.response)) % 2)

def group(args, samples):
    return [len(samples) + place / 10 for place, _ in enumerate(samples)]
"""
ANSWERS = """
from slime.rollout.sglang_rollout import generate

async def answer(args, sample, sampling_params, evaluation=False):
    assert evaluation and sample.metadata["level"] == 2
    sample = await generate(args, sample, sampling_params)
    sample.metadata["made"] = "by its own"
    return sample
"""
LINE = (
    "--hf-checkpoint model --num-rollout 3 --rollout-batch-size 2 --n-samples-per-prompt 2 --prompt-data train.jsonl "
    "--rollout-max-response-len 16 --eval-interval 2 --eval-config sets.yaml --label-key label --save-interval 2 "
    "--run sim --rm-workers 1"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write what the run reads: four files of a user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    files = {
        "train": [{"input": f"p{n}", "label": "1"} for n in range(9)],
        "exact": [{"input": f"e{n}", "label": "1", "metadata": {"own": n}} for n in range(3)],
        "own": [{"question": f"q{n}"} for n in range(5)],
    }
    for name, rows in files.items():
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("sets.yaml").write_text(SETS)
    Path("graders.py").write_text(GRADERS)
    Path("answers.py").write_text(ANSWERS)
    return tmp_path


def feed_of(settings: TrainSettings) -> PromptFeed:
    source = PromptSource(settings.data, 0, Letters(), 200)
    return PromptFeed(
        source, eval_sources(settings.evaluation, settings.data, Letters(), 200), settings.data, Letters()
    )


async def simulate(folder: Path, line: str) -> Simulation:
    """The finished run of these flags, with the real graders."""
    settings = parse_train(shlex.split(f"{LINE} {line}")).settings
    plan = make_plan(settings.rollout, settings.evaluation, settings.trainer)
    started = made.started(settings, code_version="0")
    whole = settings.reward.group_rm
    async with (
        Dispatcher(settings.reward) as pool,
        Simulation(
            folder, plan, feed=feed_of(settings), pool=pool, started=started, whole_groups=whole, deadline_s=60.0
        ) as sim,
    ):
        sim.start_engine(Script(chunk=8), reward=settings.reward, generate=generate_setup(settings))
        assert await sim.finish() is RunPhase.FINISHED
    return sim


def estimate(rewards: list[float], k: int) -> float:
    """pass@k by its definition: over all choices of k answers."""
    chosen = list(combinations(rewards, k))
    return sum(any(reward == 1 for reward in some) for some in chosen) / len(chosen)


async def test_each_set_has_its_own_way_and_the_run_says_so(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sim = await simulate(folder, "--custom-rm-path graders.py:run")
    check_run(sim)
    check_exact(sim)
    check_training(sim)
    calls: dict[str, list[tuple[Sampling, int]]] = {"exact": [], "own": []}
    requests = sim.events(RolloutRequested, purpose=Purpose.EVAL)
    for request in requests:
        group = [other for other in requests if other.group == request.group]
        calls[request.group.split("-")[1]].append((request.sampling, len(group)))
    exact, own = Sampling(max_new_tokens=8, temperature=0.0), Sampling(max_new_tokens=24, top_k=3, stop=("#",))
    assert calls == {"exact": [(exact, 1)] * len(calls["exact"]), "own": [(own, 4)] * len(calls["own"])}
    assert all(calls.values())
    prompts = sim.events(PromptSubmitted, purpose=Purpose.EVAL)
    metadata = [prompt.metadata for prompt in prompts if prompt.dataset == "exact" and prompt.version == 0]
    assert metadata == [{"own": n, "level": 1, "rm_type": "exact"} for n in range(3)]
    assert {prompt.custom_rm_path for prompt in prompts if prompt.dataset == "own"} == {"graders.py:own"}

    metadata_by_set = {event.group.split("-")[1]: event.metadata for event in sim.events(RolloutCompleted)}
    assert metadata_by_set == {"own": {"made": "by its own"}, "exact": {}, "0": {}}

    rewards: dict[str, list[float]] = {}
    for event in sim.events(RewardAssigned):
        if event.group.startswith("eval-own"):
            assert event.grader.endswith(":own")
            rewards.setdefault(event.group, []).append(event.value)
        else:
            assert event.grader.endswith(":run"), "a run's own function goes before a set's rm_type"
    done = {(event.dataset, event.version): event for event in sim.events(EvalCompleted)}
    assert sorted(done) == [(name, version) for name in ("exact", "own") for version in (0, 2, 3)]
    for (name, version), event in done.items():
        groups = [values for group, values in rewards.items() if group.startswith(f"eval-{name}-v{version}-")]
        pass_rates = (
            {f"pass@{k}": sum(estimate(values_, k) for values_ in groups) / 5 for k in (1, 2, 4)} if groups else {}
        )
        assert event.pass_rates == pytest.approx(pass_rates)
        assert event.samples == (20 if name == "own" else 3)
    assert 0 < done["own", 0].pass_rates["pass@1"] < done["own", 0].pass_rates["pass@4"]
    await asyncio.to_thread(check_commands, sim, folder, capfd)


def check_commands(sim: Simulation, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without the YAML file: audit and replay find nothing (else they exit 1), show and query say the pass rates."""
    made.archived(folder / "archives", sim.log.records)
    (folder / "sets.yaml").unlink()
    where = str(folder / "archives" / "sim")

    def output_of(*words: str) -> str:
        assert command(words[0])(words[1:]) == 0
        return capfd.readouterr().out

    output_of("audit", where)
    output_of("replay", where)
    assert "pass@4" in output_of("show", where)
    query = "SELECT dataset, version, pass_rates['pass@4'] AS k4 FROM evals ORDER BY dataset, version"
    rows: list[dict[str, Any]] = json.loads(output_of("query", where, query, "--format", "json"))
    by_event = {(event.dataset, event.version): event.pass_rates.get("pass@4") for event in sim.events(EvalCompleted)}
    assert {(row["dataset"], row["version"]): row["k4"] for row in rows} == pytest.approx(by_event)


async def test_a_group_s_grader_has_whole_groups_of_evaluations_too(folder: Path) -> None:
    """Grade as many answers as the set asks for, even a single one."""
    text = SETS.replace("    custom_rm_path: graders.py:own\n", "")
    Path("sets.yaml").write_text(text)
    sim = await simulate(folder, "--custom-rm-path graders.py:group --group-rm")
    check_run(sim)
    rewards = {event.sample: event.value for event in sim.events(RewardAssigned)}
    assert rewards.keys() == {event.sample for event in sim.events(RolloutCompleted)}
    for sample, value in rewards.items():
        size = 4 if sample.startswith("eval-own") else 1 if sample.startswith("eval-exact") else 2
        assert value == pytest.approx(size + int(sample[-1]) / 10)
    means = {event.dataset: event.mean for event in sim.events(EvalCompleted)}
    assert means == pytest.approx({"exact": 1.0, "own": 4.15})
