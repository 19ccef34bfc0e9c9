"""Gateway and trainer killed under a client: it notices nothing, and what it made is what it would have made."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import tinker

from schemas.commands import CommandDone
from schemas.steps import StepCommitted
from slime_events.analysis.audit.audit import Audit
from tests.tinker.scene import PASS_S, DigestRanks, DrivenSimulation, datum, scene

STEPS = 6


def drive(client: tinker.ServiceClient, on_step: Any) -> list[float]:
    """Run steps of two passes each, one of them of two requests; return the log-probs and the samples."""
    model, seen = client.create_lora_training_client(base_model="tiny").result(), list[float]()
    for step in range(STEPS):
        on_step(step)
        first = model.forward_backward([datum(5 + step, 6), datum(7, 8, 9)], "cross_entropy")
        two = model.forward_backward([datum(9, 9, 5, advantage=1.0)], "ppo", {"clip_low_threshold": 0.9})
        stepped = model.optim_step(tinker.AdamParams(learning_rate=1e-3))
        for passed in (first.result(), two.result()):
            seen += [number for out in passed.loss_fn_outputs for number in out["logprobs"].data]
        seen.append(stepped.result().metrics["version"])
    sampler = model.save_weights_and_get_sampling_client().result()
    prompt, params = tinker.ModelInput.from_ints([65, 66]), tinker.SamplingParams(max_tokens=4, seed=3)
    seen += sampler.sample(prompt=prompt, num_samples=1, sampling_params=params).result().sequences[0].tokens
    return seen


async def driven(folder: Path, kills: Any) -> tuple[list[float], DrivenSimulation]:
    async with scene(folder) as (simulation, gateway):
        client, loop = await asyncio.to_thread(gateway.client), asyncio.get_running_loop()

        def on_step(step: int) -> None:
            asyncio.run_coroutine_threadsafe(kills(step, simulation, gateway), loop)

        seen = await asyncio.wait_for(asyncio.to_thread(drive, client, on_step), 60)
        await asyncio.to_thread(lambda: client.close("success").result())
        auditor = Audit("sim", files=False)
        for recorded in simulation.log.records:
            auditor.apply(recorded)
        assert not [
            finding for finding in auditor.finish().findings if finding.check in ("steps", "batches", "weights")
        ]
        return seen, simulation


async def nothing(*_: Any) -> None:
    return


async def gateway_killed(step: int, simulation: DrivenSimulation, gateway: Any) -> None:
    if step % 2:
        await gateway.kill()
        await asyncio.sleep(0.05)
        await gateway.start()


async def trainer_killed(step: int, simulation: DrivenSimulation, gateway: Any) -> None:
    if step % 2 == 0:
        await asyncio.sleep(0.01 * step)
        await simulation.kill_trainer()
        simulation.start_trainer(DigestRanks(PASS_S))


async def test_a_killed_gateway_and_a_killed_trainer_change_nothing(tmp_path: Path) -> None:
    expected, calm = await driven(tmp_path / "calm", nothing)
    for name, kills in (("gateway", gateway_killed), ("trainer", trainer_killed)):
        seen, simulation = await driven(tmp_path / name, kills)
        assert seen == expected, name
        digests = [[step.weights_digest for step in run.events(StepCommitted)] for run in (calm, simulation)]
        assert digests[0] == digests[1]
        done = [event.command for event in simulation.events(CommandDone)]
        assert len(done) == len(set(done)) == 2 + 3 * STEPS
