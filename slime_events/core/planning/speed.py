"""`Speed`: estimates of how fast a run generates and trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from slime_events.core.config.settings import TrainSettings
from slime_events.core.planning.assumptions import Assumptions
from slime_events.core.planning.engine_memory import EngineBytes
from slime_events.core.planning.model import ModelShape, PlannedModel, TokenLoad
from slime_events.core.planning.needs import Needs

GIGA, TERA = 1e9, 1e12


@dataclass(frozen=True, slots=True)
class Speed:
    """Estimates, on average over a run."""

    running: Annotated[float, doc("Samples that an engine decodes at a time.")]
    tokens_per_engine: Annotated[float, doc("Generated tokens of an engine, per second; 0 without engines.")]
    generate_s: Annotated[float, doc("Seconds to generate the samples of a step.")]
    train_s: Annotated[float, doc("Seconds of a training step, log-probs included.")]
    step_s: Annotated[float, doc("Seconds of a step: both, or the longer one if they overlap.")]

    @property
    def per_sample(self) -> float:
        """Generated tokens of one sample, per second."""
        return self.tokens_per_engine / self.running if self.running else 0.0


def speed_of(
    settings: TrainSettings,
    needs: Needs,
    model: PlannedModel,
    engine: EngineBytes | None,
    load: TokenLoad,
    assumed: Assumptions,
) -> Speed:
    """Return the speed. engine: None without engines."""
    samples = settings.rollout.rollout_batch_size * settings.rollout.n_samples_per_prompt
    overlap = settings.rollout.max_staleness > 0 and not needs.shared
    running = tokens_s = generate = 0.0
    if engine is not None and needs.engines:
        flying = samples * (1 + settings.rollout.max_staleness * overlap) / needs.engines
        running = running_samples(settings, engine, load, flying)
        step_s = decode_step_s(model.shape, engine, needs.each, running, load, assumed)
        tokens_s = running / step_s
        # The last samples of a step run alone, so a step is never shorter than its longest response.
        generate = max(samples * load.response / (needs.engines * tokens_s), load.longest_response * step_s)
    train = train_step_s(settings, needs, model, samples, load, assumed)
    return Speed(running, tokens_s, generate, train, max(generate, train) if overlap else generate + train)


def running_samples(settings: TrainSettings, engine: EngineBytes, load: TokenLoad, flying: float) -> float:
    """Return how many samples an engine decodes at a time. flying: samples in flight for each engine.

    On average a running sample has half of its response in the cache.
    """
    limits = [flying, float(settings.engine.sglang_server_concurrency)]
    if (most := settings.engine.sglang.get("max_running_requests")) is not None:
        limits.append(float(most))
    limits.append(engine.cached / (load.mean - load.response / 2))
    return max(1.0, min(limits))


def decode_step_s(
    shape: ModelShape, engine: EngineBytes, gpus: int, running: float, load: TokenLoad, assumed: Assumptions
) -> float:
    """Return the seconds of a decoding step: a GPU reads its weights and the cache of its samples, or computes.

    All experts are read, as many samples choose nearly all of them.
    """
    held = running / engine.groups * (load.mean - load.response / 2) * engine.token
    reads = (engine.weights + held) / (assumed.gpu_bandwidth * GIGA * assumed.decode_use)
    computes = 2 * shape.active * running / (gpus * assumed.gpu_tflops * TERA * assumed.train_use)
    return max(reads, computes)


def train_step_s(
    settings: TrainSettings, needs: Needs, model: PlannedModel, samples: int, load: TokenLoad, assumed: Assumptions
) -> float:
    """Return the seconds of a step's passes: forward and backward are 3 forward passes, recomputation one more.

    A pass for log-probs of the policy, and one of each frozen model, precede them.
    """
    if not needs.ranks:
        return 0.0
    flags, algorithm = settings.trainer.megatron, settings.algorithm
    passes = 3 + (flags.get("recompute_granularity") == "full") + 1
    passes += algorithm.use_kl_loss or algorithm.kl_coef != 0
    flops = samples * model.forward_flops(int(load.mean)) * passes
    return flops / (needs.ranks * assumed.gpu_tflops * TERA * assumed.train_use)
