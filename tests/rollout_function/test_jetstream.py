"""Test the same on a real log: a function whose process is killed while engines generate for it."""

from pathlib import Path

from schemas.batches import BatchSealed
from schemas.rollouts import RolloutCompleted, RolloutRequested, RolloutReturned
from slime_events.core.state.run import RunPhase
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer
from tests.rollout_function.scene import a_run, check_records, runner
from tests.scripted_engine import Script


async def test_it_goes_on_after_a_kill(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path / "nats") as server:
        log = await JetStreamLog.open(server.url, "sim")
        async with a_run(tmp_path, log=log, deadline_s=30.0) as run:
            run.start_engine(Script(chunk=2, seconds_per_chunk=0.05))
            first = run.start_role("function", runner(run, "wrapped").run())
            await run.until(RolloutCompleted, 2)
            await run.kill_role(first)
            run.start_role("function", runner(run, "wrapped").run())
            assert await run.finish() is RunPhase.FINISHED
        records = [recorded async for recorded in log.read()]
        await log.close()
    events = [recorded.envelope.event for recorded in records]
    assert [event.step for event in events if isinstance(event, RolloutReturned)] == [0, 1, 2]
    assert [len(event.samples) for event in events if isinstance(event, BatchSealed)] == [4, 4, 4]
    samples = [event.sample for event in events if isinstance(event, RolloutRequested) and event.purpose == "call"]
    assert len(samples) == len(set(samples)) == 12
    check_records(records, run.plan)
