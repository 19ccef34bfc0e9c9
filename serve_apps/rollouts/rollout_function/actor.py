"""`RolloutFunctionActor`: the process of a user's rollout function and evaluation function."""

import time
from functools import partial
from pathlib import Path

from serve_apps.rollouts.rollout_function.function import EVALUATION, ROLLOUT, RolloutFunction
from serve_apps.rollouts.rollout_function.runner import FunctionRunner, RunnerContext
from slime_events.core.checkpoint.vocabulary import vocabulary_of
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.join import join_run
from slime_events.core.run.run_address import RunAddress
from slime_events.core.state.keeper import StateKeeper
from slime_events.core.state.snapshot import Snapshot, Snapshots
from slime_events.loop.conductor.plan import make_plan
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.tokenizer import load_tokenizer
from storage.blobs import BlobStore
from storage.payloads import fetch, offload_async


class RolloutFunctionActor:
    """The actor that replaces the run's own loop."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Call the functions until the run ends."""
        begun, blobs = time.perf_counter(), BlobStore(address.blob_url)
        async with join_run(address, "rollout-function") as worker:
            context = RunnerContext(
                make_plan(settings.rollout, settings.evaluation, settings.trainer),
                load_tokenizer(settings.engine.hf_checkpoint),
                ArgsView.of_run(settings, address.models),
                partial(fetch, blobs=blobs),
                partial(offload_async, blobs=blobs),
                grades=not settings.debug.debug_train_only,
                vocabulary=vocabulary_of(settings.engine.hf_checkpoint),
            )
            paths = ((ROLLOUT, settings.rollout.rollout_function_path), (EVALUATION, settings.evaluation.own_function))
            train, evaluate = (RolloutFunction(flag, path) if path else None for flag, path in paths)
            # The conductor's snapshots, only read here.
            keeper = StateKeeper[Snapshot](Snapshots(Path(address.folder) / "snapshots"), address.archive_url)
            await worker.join({"ready": time.perf_counter() - begun})
            await FunctionRunner(worker, context, train, evaluate, keeper).run()
