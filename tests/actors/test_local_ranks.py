"""Test ranks in processes of their own: whose error is reported, and that no wait hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.backends import Backend
from actors.trainer import local_ranks, ranks
from actors.trainer.local_ranks import LocalRanks
from schemas.errors import CheckpointMismatch, InvalidValue, RankLost, TrainerError
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.run.process_environment import rank_environment, rank_secrets, rank_variables
from storage.cancellation import end_all
from tests import made


class Process:
    """Answer as scripted, or never."""

    def __init__(self, answer: Any = None, after_s: float = 0.0) -> None:
        self._answer, self._after_s = answer, after_s
        self._killed = asyncio.Event()

    async def call(self, method: object, *args: Any) -> Any:
        if self._answer is ...:
            await self._killed.wait()
            raise RankLost("it was killed")
        await asyncio.sleep(self._after_s)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def kill(self) -> None:
        self._killed.set()


async def errors_of(monkeypatch: pytest.MonkeyPatch, *processes: Process) -> Any:
    monkeypatch.setattr(ranks, "BLAME_S", 0.05)
    return await LocalRanks(processes).everywhere(Backend.optimizer_digest)  # type: ignore[arg-type]


async def test_rank_0_answers_once_all_have(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await errors_of(monkeypatch, Process("own"), Process("theirs", after_s=0.02)) == "own"


async def test_a_rank_that_waits_for_one_that_failed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainerError, match="gradient"):
        await errors_of(monkeypatch, Process(...), Process(TrainerError("gradient norm nan")))


async def test_the_lost_rank_is_named_not_the_one_that_noticed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    noticed, lost = TrainerError("connection closed by peer"), RankLost("rank 1 was killed")
    with pytest.raises(RankLost, match="rank 1"):
        await errors_of(monkeypatch, Process(noticed), Process(lost, after_s=0.01))


async def test_a_checkpoint_that_fits_no_rank_is_said_and_all_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = CheckpointMismatch("another model")
    with pytest.raises(CheckpointMismatch):
        await errors_of(monkeypatch, Process(wrong), Process(wrong))


async def test_the_ranks_meeting_place_is_chosen_once_all_can_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()

    class Starting(Process):
        def __init__(self, rank: int, environment: dict[str, str]) -> None:
            super().__init__(after_s=0.01 * rank)

        async def ready(self) -> None:
            await self.call("ready")
            calls.append("ready")

        async def start(self, *args: Any) -> None:
            await self.call("start")
            calls.append("start")

        async def close(self) -> None: ...

    def rendezvous_address() -> str:
        calls.append("chosen")
        return "there"

    monkeypatch.setattr(local_ranks, "RankProcess", Starting)
    monkeypatch.setattr(local_ranks, "rendezvous_address", rendezvous_address)
    trainer = TrainerSettings(hf_checkpoint="", actor_num_gpus_per_node=2)
    async with local_ranks.local_ranks(made.settings(trainer=trainer)):
        assert calls == ["ready", "ready", "chosen", "start", "start"]


async def test_a_rank_has_its_variables_before_it_imports_anything() -> None:
    own = TrainerSettings(deterministic_mode=True, train_env_vars={"MINE": "1", "OMP_NUM_THREADS": "3"})
    process = local_ranks.RankProcess(0, rank_variables(own, {}))
    try:
        expected = {"NCCL_ALGO=Ring", "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0", "CUBLAS_WORKSPACE_CONFIG=:4096:8"}
        expected |= {"MINE=1", "OMP_NUM_THREADS=3"}
        async with asyncio.timeout(60):  # they are those of the parent until it is the new program
            while not expected <= set(Path(f"/proc/{process._child.pid}/environ").read_text().split("\0")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        process.kill()
        await process.close()


def test_variables_that_are_set_already_stay_if_they_are_deterministic() -> None:
    on = TrainerSettings(deterministic_mode=True)
    assert rank_environment(TrainerSettings(), {"NCCL_ALGO": "Tree"}) == {}
    assert rank_environment(TrainerSettings(megatron={"deterministic_mode": True}), {}) == rank_environment(on, {})
    assert rank_environment(on, {"NCCL_ALGO": "CollnetDirect,Ring"})["NCCL_ALGO"] == "CollnetDirect,Ring"
    for name, value in (("NCCL_ALGO", "Ring,Tree"), ("CUBLAS_WORKSPACE_CONFIG", ":0:0")):
        with pytest.raises(InvalidValue, match=name):
            rank_environment(on, {name: value})


def test_the_users_variables_are_of_ranks_alone_and_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret among them is recorded by name, and the rank gets its value."""
    words = [*("--hf-checkpoint", "m", "--num-rollout", "1", "--rm-type", "math", "--deterministic-mode")]
    json_text = '{"NCCL_ALGO": "Ring", "HF_TOKEN": "hf_secret", "A": "b"}'
    trainer = parse_train([*words, "--train-env-vars", json_text]).settings.trainer
    assert "hf_secret" not in str(trainer.train_env_vars)
    variables = rank_variables(trainer, {"NCCL_ALGO": "Tree"})
    assert (variables["NCCL_ALGO"], variables["A"]) == ("Ring", "b")
    assert "HF_TOKEN" not in variables
    assert rank_secrets(trainer) == {"HF_TOKEN": "hf_secret"}
    with pytest.raises(InvalidValue, match="train_env_vars"):
        parse_train([*words, "--train-env-vars", '{"A": 1}'])
    monkeypatch.delenv(trainer.train_env_vars["HF_TOKEN"].strip("${}"))
    with pytest.raises(InvalidValue, match="not set"):
        rank_secrets(trainer)


async def test_an_interrupted_call_leaves_no_task_behind() -> None:
    call = asyncio.create_task(LocalRanks([Process(...)]).everywhere(Backend.reset))  # type: ignore[list-item]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await end_all(call)
    assert asyncio.all_tasks() == {asyncio.current_task()}
